"""From a model to masks: score it, select, and look whether a path is left."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from snip.common.errors import SnipWarning
from snip.distributed.models import ranks_of
from snip.masks import Masks, held_masks
from snip.methods.kinds import DATA
from snip.methods.rounds import Scorer, in_rounds
from snip.network.calls import example
from snip.network.network import Network
from snip.scoring.checks import check_signal, zero_biases
from snip.scoring.gradients import Scores
from snip.scoring.settings import Scoring
from snip.selection.costs import element_flops
from snip.selection.granularity import Granularity
from snip.selection.repair import with_a_path
from snip.selection.select import select
from snip.selection.survivors import with_survivors

AUTO = "auto"  # a floor only where no path would be left without one


def scored_and_selected(scorer: Scorer, asked: Mapping[str, Any]) -> Masks:
    """The masks, with a path where they can have one, and with where they come from."""
    rankings = {scorer.scoring: _ranked(scorer, asked)}
    other = _other_scoring(scorer)

    def selected(scoring: Scoring = scorer.scoring, **cure: Any) -> Masks:
        return rankings[scoring].select(**cure)

    def rescore() -> dict[str, Any]:
        assert other is not None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SnipWarning)  # the first scoring has said it
            rankings[other] = _ranked(scorer.again(other), asked)
        return {"scoring": other}

    first = rankings[scorer.scoring]
    return with_a_path(
        scorer.model, selected(), scorer.call, selected, repair=first.may_be_repaired,
        batch_dim=scorer.scoring.batch_dim, learned=scorer.learned, silent=first.silent,
        rescore=None if other is None else rescore,
    )  # fmt: skip


def _other_scoring(scorer: Scorer) -> Scoring | None:
    """By the norms' own statistics: for networks in which a batch's leave no path.

    So it is with depthwise convolutions at high sparsities. Three seeds of MobileNetV2 trained to a
    higher accuracy so than with any floor: see docs/defaults.md.
    """
    by_batch = scorer.method.reads == DATA and scorer.scoring.batch_norm == "train"
    norms = any(isinstance(module, _BatchNorm) for module in scorer.model.modules())
    # Of several processes all must try the same.
    again = all(ranks_of(scorer.model).everyones(scorer.seen.can_be_read_again))
    if not (by_batch and norms and again):
        return None
    return replace(scorer.scoring, batch_norm="eval")


@dataclass(frozen=True)
class _Ranking:
    """Scores that were made in one way, ready to be selected from."""

    select: Callable[..., Masks]
    silent: list[str]  # layers on which the loss does not depend
    may_be_repaired: bool


def _ranked(scorer: Scorer, asked: Mapping[str, Any]) -> _Ranking:
    """Score the model, in rounds if the method has some."""
    sparsity, granularity, scope = asked["sparsity"], asked["granularity"], asked["scope"]
    floor, model = asked["floor"], scorer.model
    least = 0 if isinstance(floor, str) else floor
    before = held_masks(model)
    with scorer.awake() as scores:
        silent = check_signal(model, scores)
        costs = element_flops(scores, scorer.uses) if asked["budget"] == "flops" else None
        granularity = _on_model(granularity, scorer)
        selecting = partial(_selected, model, before, costs)
        a_round = partial(selecting, granularity=granularity.for_early_rounds, floor=least)
        scores = in_rounds(scorer, scores, a_round, sparsity, scope)
    about = {**scorer.provenance(), "zero_biases": zero_biases(model, scores)}
    settings = {"sparsity": sparsity, "granularity": granularity, "scope": scope, "floor": least}

    def selected(**cure: Any) -> Masks:
        return selecting(scores, **settings | cure).with_provenance(**about)

    repair = floor == AUTO and scope == "global" and costs is None and granularity.accepts_scope
    return _Ranking(selected, silent, repair)


def _selected(
    model: nn.Module,
    within: Masks | None,
    costs: Mapping[str, float] | None,
    scores: Scores,
    *,
    granularity: Granularity,
    **settings: Any,
) -> Masks:
    """What `select` keeps of this model: inside what it has left, and with what its norms need."""
    scores = with_survivors(
        model, scores, within=within, costs=costs, group_size=granularity.group_size
    )
    settings |= {"granularity": granularity, "packed": Network.of(model).packed}
    return select(scores, within=within, costs=costs, **settings)


def _on_model(granularity: Granularity, scorer: Scorer) -> Granularity:
    """Return the granularity bound to the model that is scored."""
    inputs = None
    if granularity.needs_inputs:
        inputs = None if scorer.call is None else scorer.call.inputs(scorer.model)
        if inputs is None:  # a loss may call parts of the model and never the whole
            inputs = next((example(scorer.model, batch) for batch in scorer.seen.batches), None)
    return granularity.on(scorer.model, inputs)
