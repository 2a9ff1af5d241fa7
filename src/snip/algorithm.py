"""Algorithm 1, whole: score every connection, select those that stay, hold the rest at zero."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from snip.anatomy.parameters import Predicate, left_out
from snip.common.errors import nearest
from snip.masks import Masks, held_masks, versions
from snip.methods import Method, named_method
from snip.scoring.batches import LossFn, SeenBatches, cross_entropy, name_of
from snip.scoring.checks import check_signal, scorable_parameters, warn_of_parametrized
from snip.scoring.settings import Scoring, checked_scoring
from snip.selection.budgets import Scope, check_scope_names
from snip.selection.checks import check_request, require_some_kept, warn_of_empty_layers
from snip.selection.costs import count_uses, element_flops
from snip.selection.select import select
from snip.selection.survivors import with_survivors

BUDGETS = ("connections", "flops")


def prune(
    model: nn.Module,
    batches: Any,
    *,
    sparsity: float,
    loss_fn: LossFn | None = None,
    params: Predicate | None = None,
    method: str | Method = "snip",
    scope: Scope = "global",
    floor: float = 0,
    budget: str = "connections",
    scoring: Scoring = Scoring(),
) -> Masks:
    """Remove all but the round(m (1 - sparsity)) most sensitive connections; returns the masks.

    `batches` is one batch (a tensor, a mapping, or a tuple or list with a tensor in it) or an
    iterable of them; `loss_fn(model, batch)` is cross-entropy of an (inputs, targets) pair unless
    given. `method` is a name in `snip.methods.METHODS` or a function like those; `scoring` says
    how it scores. `budget="flops"` keeps the most sensitivity per FLOP: `sparsity` is then the
    fraction of the FLOPs that is saved. A model that is pruned already is pruned further. If
    anything is refused, nothing is changed.
    """
    name, score = named_method(method)
    _check(model, params, sparsity, scope, floor, budget, scoring)
    warn_of_parametrized(model, params)
    seen = SeenBatches(batches, scoring.batch_dim)
    with count_uses(model) as counter:
        scores = score(model, seen, loss_fn, params=params, scoring=scoring)
    check_signal(scores)
    costs = element_flops(scores, counter.uses) if budget == "flops" else None
    within = held_masks(model)
    scores = with_survivors(model, scores, within=within, costs=costs)
    masks = select(scores, sparsity=sparsity, scope=scope, floor=floor, within=within, costs=costs)
    about = {**seen.provenance(), **asdict(scoring), "loss": name_of(loss_fn or cross_entropy)}
    about |= {"method": name, "budget": budget, "uses": counter.uses}
    about |= {"left_out": left_out(model, params), "seed": torch.initial_seed()}
    masks = masks.with_provenance(**about, versions=versions())
    warn_of_empty_layers(masks)
    masks.apply(model)
    return masks


def _check(
    model: nn.Module,
    params: Predicate | None,
    sparsity: float,
    scope: Scope,
    floor: float,
    budget: str,
    scoring: Scoring,
) -> None:
    """Refuse a request that cannot be met, before anything is scored."""
    if budget not in BUDGETS:
        raise nearest("budget", budget, BUDGETS)
    check_request(sparsity, scope, floor, by_cost=budget == "flops")
    checked_scoring(scoring)
    chosen = scorable_parameters(model, params)
    check_scope_names(scope, chosen)
    require_some_kept(sum(parameter.numel() for parameter in chosen.values()), float(sparsity))
