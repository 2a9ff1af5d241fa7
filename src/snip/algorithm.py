"""Algorithm 1, whole: score every connection, select those that stay, hold the rest at zero."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import nn

from snip.anatomy.packed import packed_parts
from snip.anatomy.parameters import Predicate, left_out
from snip.common.errors import nearest
from snip.masks import Masks, held_masks, versions
from snip.methods import Method, named_method
from snip.scoring.batches import LossFn, SeenBatches, cross_entropy, name_of
from snip.scoring.checks import (
    check_signal,
    scorable_parameters,
    warn_of_left_out,
    warn_of_parametrized,
    without_biases,
    zero_biases,
)
from snip.scoring.settings import Scoring, checked_scoring
from snip.scoring.waking import score_awake
from snip.selection.budgets import Scope, check_scope_names
from snip.selection.checks import check_request, require_some_kept
from snip.selection.costs import count_uses, element_flops
from snip.selection.repair import with_a_path
from snip.selection.select import select
from snip.selection.survivors import with_survivors

BUDGETS = ("connections", "flops")
BIASES = ("compete", "keep")
AUTO = "auto"  # a floor only where no path would be left without one


def prune(
    model: nn.Module,
    batches: Any,
    *,
    sparsity: float,
    loss_fn: LossFn | None = None,
    params: Predicate | None = None,
    method: str | Method = "snip",
    scope: Scope = "global",
    floor: float | str = AUTO,
    budget: str = "connections",
    biases: str = "compete",
    scoring: Scoring = Scoring(),
) -> Masks:
    """Remove all but the round(m (1 - sparsity)) most sensitive connections; returns the masks.

    `batches` is one batch (a tensor, a mapping, or a tuple or list with a tensor in it) or an
    iterable of them; `loss_fn(model, batch)` is cross-entropy of an (inputs, targets) pair unless
    given. `method` is a name in `snip.methods.METHODS` or a function like those; `scoring` says
    how it scores. `floor` is what each layer keeps at least: "auto" is 0, or, if no path from
    input to output would be left, what leaves one. `budget="flops"` keeps the most sensitivity
    per FLOP: `sparsity` is then the fraction of the FLOPs that is saved. `biases="keep"` leaves
    them all. A model that is pruned already is pruned further. If anything is refused, nothing is
    changed.
    """
    name, score = named_method(method)
    _check(model, params, sparsity, scope, floor, budget, biases, scoring)
    out = left_out(model, params)
    warn_of_parametrized(out)
    warn_of_left_out(model, out)
    if biases == "keep":
        params, kept = without_biases(model, params)
        out |= dict.fromkeys(kept, "bias, kept")
    seen = SeenBatches(batches, scoring.batch_dim)
    with count_uses(model) as counter:
        score_once = partial(score, model, seen, loss_fn, params=params, scoring=scoring)
        scores = score_awake(model, seen, params, scoring, score_once)
    silent = check_signal(model, scores)
    costs = element_flops(scores, counter.uses) if budget == "flops" else None
    within = held_masks(model)
    scores = with_survivors(model, scores, within=within, costs=costs)
    least = 0 if isinstance(floor, str) else floor
    selecting = partial(
        select, scores, sparsity=sparsity, scope=scope, floor=least, within=within, costs=costs,
        packed=packed_parts(model),
    )  # fmt: skip
    masks = selecting()
    repair = floor == AUTO and scope == "global" and costs is None
    masks = with_a_path(
        model, masks, counter.call, selecting, repair=repair, batch_dim=scoring.batch_dim,
        learned=counter.learned, silent=silent,
    )  # fmt: skip
    about = {**seen.provenance(), **asdict(scoring), "loss": name_of(loss_fn or cross_entropy)}
    about |= {"method": name, "budget": budget, "uses": counter.uses}
    about |= {"left_out": out, "zero_biases": zero_biases(model, scores)}
    about |= {"seed": torch.initial_seed()}
    masks = masks.with_provenance(**about, versions=versions())
    masks.apply(model)
    return masks


def _check(
    model: nn.Module,
    params: Predicate | None,
    sparsity: float,
    scope: Scope,
    floor: float | str,
    budget: str,
    biases: str,
    scoring: Scoring,
) -> None:
    """Refuse a request that cannot be met, before anything is scored."""
    if budget not in BUDGETS:
        raise nearest("budget", budget, BUDGETS)
    if biases not in BIASES:
        raise nearest("biases", biases, BIASES)
    check_request(sparsity, scope, 0 if floor == AUTO else floor, by_cost=budget == "flops")
    checked_scoring(scoring)
    chosen = scorable_parameters(model, params)
    check_scope_names(scope, chosen)
    require_some_kept(sum(parameter.numel() for parameter in chosen.values()), float(sparsity))
