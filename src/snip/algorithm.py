"""Algorithm 1, whole: score every connection, select those that stay, hold the rest at zero."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from snip.common.errors import InputError, KindError, nearest
from snip.distributed.models import ranks_of
from snip.masks import Masks, versions
from snip.methods import (
    AtInitialisation,
    DuringTraining,
    Method,
    Score,
    named_method,
    scope_of,
    training_method,
)
from snip.methods.during import prune_trained
from snip.methods.kinds import DATA
from snip.methods.ranking import AUTO, scored_and_selected
from snip.methods.rounds import Scorer
from snip.methods.shared import (
    check_alike,
    check_not_shared,
    check_same_masks,
    check_shared,
    warn_of_own_masks,
)
from snip.network.network import Network
from snip.network.parameters import Predicate
from snip.scoring.batches import LossFn
from snip.scoring.checks import (
    scorable_parameters,
    warn_of_left_out,
    warn_of_parametrized,
    warn_of_zeros,
    without_biases,
)
from snip.scoring.settings import Scoring, checked_scoring
from snip.selection.budgets import Scope, check_scope_names
from snip.selection.checks import (
    asked_sparsity,
    check_granularity,
    check_request,
    require_some_kept,
)
from snip.selection.granularity import Granularity, checked_granularity
from snip.training.config import TrainConfig

BUDGETS = ("connections", "flops")
COMPETE, KEEP = BIASES = ("compete", "keep")
# The options of `prune` that methods which train obey.
OF_TRAINING = ("model", "batches", "sparsity", "params", "method", "training")


def prune(
    model: nn.Module,
    batches: Any = None,
    *,
    sparsity: float | None = None,
    loss_fn: LossFn | None = None,
    params: Predicate | None = None,
    method: str | Score | Method = "snip",
    granularity: str | Granularity = "element",
    scope: Scope = "global",
    floor: float | str = AUTO,
    budget: str = "connections",
    biases: str = COMPETE,
    scoring: Scoring = Scoring(),
    training: TrainConfig | None = None,
) -> Masks:
    """Remove all but the round(m (1 - sparsity)) most sensitive connections; returns the masks.

    `batches` is one batch (a tensor, a mapping, or a tuple or list with a tensor in it) or an
    iterable of them; `loss_fn(model, batch)` is cross-entropy of an (inputs, targets) pair unless
    given. Random, magnitude and ERK need none; with some, the paths of the network are followed.
    `method` is a name in `snip.methods.METHODS` or a function that scores; `scoring` says
    how it scores. `granularity` is what is kept or removed whole: "element", single connections;
    "channel", units, which `snip.shrink` then takes out; n of m inputs such as "2:4", which needs
    no sparsity; blocks of a weight such as "4x4". `floor` is what each layer keeps at least:
    "auto" is 0, or, if no path from input to output would be left, what leaves one.
    `budget="flops"` keeps the most sensitivity per FLOP: `sparsity` is then the fraction of the
    FLOPs that is saved. `biases="keep"` leaves them all. A model that is pruned already is pruned
    further. A model under DDP or `fully_shard` is pruned by all processes together, each with its
    own batches; all get the same masks. What is refused changes nothing.

    Methods that train (LWC, OBD and others) are for a trained model, on a snip data set, a
    DataLoader or a list of (inputs, labels): by cross-entropy, in phases that are parts of
    `training` (unless given, of twenty epochs). The model is then ready for a last training.
    """
    params = Network.of(model, params).choice
    during = training_method(method)
    if during is not None:
        return _prune_trained(*during, locals())
    asked: dict[str, Any] = {
        "sparsity": sparsity, "granularity": granularity, "scope": scope, "floor": floor,
        "budget": budget, "biases": biases, "scoring": scoring,
    }  # fmt: skip
    ranks = ranks_of(model)
    with ranks.together():
        name, chosen, asked = _checked(model, params, method, training, asked)
        batches = _batches(batches, name, chosen, asked)
    check_alike(ranks, model, params, batches, {**asked, "method": name})
    warn_of_own_masks(model)
    warn_of_zeros(model, params)
    out = Network.of(model, params).left_out
    warn_of_parametrized(out)
    warn_of_left_out(model, out)
    if biases == KEEP:
        params, kept = without_biases(model, params)
        out |= dict.fromkeys(kept, "bias, kept")
    scorer = Scorer(chosen, model, batches, loss_fn, params, scoring)
    masks = scored_and_selected(scorer, asked)
    about = {"method": name, "budget": budget, "left_out": out, "seed": torch.initial_seed()}
    masks = masks.with_provenance(**about, versions=versions())
    check_same_masks(ranks, masks)
    masks.apply(model)
    return masks


def _checked(
    model: nn.Module,
    params: Predicate | None,
    method: str | Score | Method,
    training: TrainConfig | None,
    asked: dict[str, Any],
) -> tuple[str, AtInitialisation, dict[str, Any]]:
    """The method with its name, and the settings; refused before anything is scored."""
    if training is not None:
        raise InputError("this method does not train: leave out training=..., and train after it.")
    name, chosen, spelled = checked_settings(method, **asked)
    asked = asked | spelled
    parameters = scorable_parameters(model, params)
    check_scope_names(asked["scope"], parameters)
    count = sum(parameter.numel() for parameter in parameters.values())
    require_some_kept(count, float(asked["sparsity"]))
    check_shared(model, name, chosen, asked)
    return name, chosen, asked


def _batches(given: Any, name: str, method: AtInitialisation, asked: dict[str, Any]) -> Any:
    """The batches; none at all if nothing that is asked for depends on them."""
    if given is not None:
        return given
    depends = {
        f"method {name!r}": method.reads == DATA or method.called,
        "budget 'flops'": asked["budget"] == "flops",
        f"granularity '{asked['granularity']}'": asked["granularity"].needs_inputs,
    }
    for what, called in depends.items():
        if called:
            raise KindError(
                f"batches is missing: {what} must see what the model is called with. Give one "
                "batch, such as (inputs, targets)."
            )
    return ()


def checked_settings(
    method: str | Score | Method = "snip",
    *,
    sparsity: float | None,
    granularity: str | Granularity = "element",
    scope: Scope = "global",
    floor: float | str = AUTO,
    budget: str = "connections",
    biases: str = COMPETE,
    scoring: Scoring = Scoring(),
) -> tuple[str, AtInitialisation, dict[str, Any]]:
    """What can be refused before there is a model: options of `prune`, and a method at its start.

    Returns the method with its name, and in one spelling the options that have several.
    """
    name, chosen = named_method(method)
    if budget not in BUDGETS:
        raise nearest("budget", budget, BUDGETS)
    if biases not in BIASES:
        raise nearest("biases", biases, BIASES)
    whole = checked_granularity(granularity)
    sparsity = asked_sparsity(whole, sparsity)
    scope = scope_of(name, chosen, scope)
    least = 0 if floor == AUTO else floor
    check_request(sparsity, scope, least, by_cost=budget == "flops")
    check_granularity(whole, scope, float(least), by_cost=budget == "flops")
    checked_scoring(scoring)
    return name, chosen, {"sparsity": sparsity, "granularity": whole, "scope": scope}


def _prune_trained(name: str, method: DuringTraining, given: Mapping[str, Any]) -> Masks:
    """`prune` by a method that trains. Options that it would not obey are refused."""
    for option, parameter in inspect.signature(prune).parameters.items():
        if option not in OF_TRAINING and given[option] != parameter.default:
            raise InputError(
                f"{option} is {given[option]!r}, but method {name!r} trains by cross-entropy and "
                f"ranks by a rule of its own: leave {option} out, or use a method such as 'snip'."
            )
    with ranks_of(given["model"]).together():
        check_not_shared(given["model"], name)
    warn_of_own_masks(given["model"])
    warn_of_left_out(given["model"], Network.of(given["model"], given["params"]).left_out)
    where = given["model"], given["batches"], given["sparsity"]
    return prune_trained(name, method, *where, given["params"], given["training"])
