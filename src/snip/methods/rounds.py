"""Pruning in rounds: score, remove a part, score what is left, until the last round's scores."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from snip.common.errors import InputError, SnipWarning, warn
from snip.common.progress import track
from snip.distributed.models import SHARDED, ranks_of, sharing
from snip.distributed.shards import local, part, ranks_of_tensors, sharded_like
from snip.distributed.wrappers import unwrap
from snip.masks import Masks
from snip.methods.kinds import DATA, NOTHING, AtInitialisation
from snip.methods.schedules import one_shot
from snip.network.calls import Call, shared_call
from snip.network.norms import normed_weights
from snip.network.parameters import Predicate
from snip.network.reader import LearnedOutputs
from snip.network.untouched import undisturbed
from snip.scoring.batches import LossFn, SeenBatches, cross_entropy, name_of
from snip.scoring.gradients import Scores
from snip.scoring.looking import look
from snip.scoring.settings import Scoring
from snip.scoring.waking import scored_awake, silent_scores
from snip.selection.budgets import Scope
from snip.selection.costs import Uses, count_uses


class Scorer:
    """Scores one model by a method, and notes what a forward shows of how the model is used."""

    def __init__(
        self,
        method: AtInitialisation,
        model: nn.Module,
        batches: Any,
        loss_fn: LossFn | None,
        params: Predicate | None,
        scoring: Scoring,
    ) -> None:
        self.method, self.model, self.loss_fn, self.scoring = method, model, loss_fn, scoring
        self.params = params
        self.seen = SeenBatches(batches, scoring.batch_dim)
        if method.reads != DATA or method.rounds is not one_shot:
            self.seen.keep()
        self.uses: Uses = {}  # of each weight, per sample
        self.call: Call | None = None  # what the model was first called with
        self.learned: LearnedOutputs | None = None  # the outputs on which the loss depends
        self.rounds = 1

    def again(self, scoring: Scoring) -> Scorer:
        """The same by another way of scoring, on the same batches."""
        other = copy.copy(self)
        other.scoring, other.seen, other.rounds = scoring, copy.copy(self.seen), 1
        return other

    def scores(self, dense: Scores | None = None) -> Scores:
        """The scores of the model as it is; `dense` has the weights before any round."""
        returning = {"dense": dense} if self.method.returns else {}
        return self.method.score(
            self.model,
            self.seen,
            self.loss_fn,
            params=self.params,
            scoring=self.scoring,
            **returning,
        )

    def awake(self) -> AbstractContextManager[Scores]:
        """Gives the first round's scores, with parts that start at zero awake inside the block."""
        blind = self.method.reads == NOTHING
        zero_parts = "as-is" if blind else self.scoring.zero_parts
        return scored_awake(self.model, self.seen, self.params, zero_parts, self._first)

    def _first(self) -> Scores:
        reads_data = self.method.reads == DATA
        # Of parts of layers, or of a model that nobody has called, no paths can be followed.
        if sharing(self.model) == SHARDED or self.seen.none_given:
            return self.scores()
        with count_uses(self.model) as counter:
            if reads_data:
                scores = self.scores()
            else:
                with ranks_of(self.model).together():
                    look(self.model, self.seen, self.loss_fn)
        # Processes that share the model must follow the same paths: those of the first one's call,
        # to the outputs from which any of them learns.
        ranks = ranks_of(self.model)
        self.learned = LearnedOutputs.of_all(ranks.everyones(counter.learned))
        self.uses = ranks.first(counter.uses)
        self.call = shared_call(ranks, counter.call, self.model)
        return scores if reads_data else self.scores()

    def provenance(self) -> dict[str, Any]:
        """What was scored, and how."""
        about = {**self.seen.provenance(), **asdict(self.scoring)}
        seen = ranks_of(self.model).everyones((self.seen.count, self.seen.samples))
        about |= {"batches": sum(n for n, _ in seen), "samples": sum(n for _, n in seen)}
        about |= {"rounds": self.rounds, "uses": self.uses}
        if self.method.reads == DATA:
            return about | {"loss": name_of(self.loss_fn or cross_entropy)}
        return about | {"batches": 0, "samples": 0}  # one was looked at, and none was scored


def in_rounds(
    scorer: Scorer,
    scores: Scores,
    select: Callable[..., Masks],
    sparsity: float,
    scope: Scope,
) -> Scores:
    """The scores of the last round, from those of the first; the model is left as found.

    `select(scores, sparsity=, scope=)` gives the masks of a round. Unless connections may return,
    those that were removed rank below all others, in the order in which they went, so that a
    repair of the last round's masks takes back the best of them.
    """
    steps = _steps(scorer.method, sparsity, scope)
    if not steps:
        return scores
    weights = _named(scorer.model, scores)
    dense = {name: weight.detach().clone() for name, weight in weights.items()}
    masks: Masks | None = None
    with undisturbed(scorer.model), _given_back(weights, dense):
        for step in track(steps, description="rounds", total=len(steps)):
            chosen = _chosen(select, scores, step)
            if chosen is None or chosen == masks:
                continue  # the scores would be the same
            masks = chosen
            _put(scorer.model, weights, dense, masks)
            found = scorer.scores(dense)
            if len(silent_scores(found)) == len(found):
                _warn_of_silence(masks)
                break
            scores = found if scorer.method.returns else _removed_last(found, scores, masks)
            scorer.rounds += 1
    return scores


def _steps(method: AtInitialisation, sparsity: float, scope: Scope) -> list[dict[str, Any]]:
    """What is asked of `select` in each round but the last."""
    sparsities = method.rounds(sparsity)[:-1]
    if isinstance(scope, str):
        return [{"sparsity": step, "scope": scope} for step in sparsities]
    own = {name: method.rounds(asked) for name, asked in scope.items()}
    return [
        {"sparsity": step, "scope": {name: steps[index] for name, steps in own.items()}}
        for index, step in enumerate(sparsities)
    ]


def _chosen(select: Callable[..., Masks], scores: Scores, step: dict[str, Any]) -> Masks | None:
    """The masks of a round on the way; None if there are none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SnipWarning)  # the last round says it
        # A model that is pruned already may have less left in a layer than an early round asks.
        with suppress(InputError):
            return select(scores, **step)
    return None


def _named(model: nn.Module, scores: Scores) -> dict[str, nn.Parameter]:
    """The parameters that are scored, by name."""
    parameters = dict(unwrap(model).named_parameters())
    return {name: parameters[name] for name in scores}


@contextmanager
def _given_back(weights: Mapping[str, nn.Parameter], dense: Scores) -> Iterator[None]:
    """Give the weights their values back on the way out."""
    try:
        yield
    finally:
        with torch.no_grad():
            for name, weight in weights.items():
                weight.copy_(dense[name])


@torch.no_grad()
def _put(
    model: nn.Module, weights: Mapping[str, nn.Parameter], dense: Scores, masks: Masks
) -> None:
    """Write the weights that the masks keep, and zeros elsewhere."""
    for name, weight in weights.items():
        whole, kept = local(dense[name]), part(masks[name], weight).to(weight.device)
        local(weight).copy_(torch.where(kept, whole, whole.new_zeros(())))
    for name, normed in normed_weights(unwrap(model)).items():
        if name in masks:
            normed.renew()


def _removed_last(found: Scores, before: Scores, masks: Masks) -> Scores:
    """The scores found, and below them those that removed connections had before."""
    ranks = ranks_of_tensors(found)
    highest = max(ranks.everyones(max(_all(before, torch.max), default=-math.inf)))
    lowest = min(ranks.everyones(min(_all(found, torch.min), default=math.inf)))
    shift = 2 * max(0.0, highest - lowest)  # twice, so that none of them ties with one that stays
    ranked = {}
    for name, score in found.items():
        kept = part(masks[name], score).to(score.device)
        own = torch.where(kept, local(score), local(before[name]) - shift)
        ranked[name] = sharded_like(own, score)
    return ranked


def _all(scores: Scores, rule: Callable[[torch.Tensor], torch.Tensor]) -> list[float]:
    """What `rule` says of each tensor, of what this process has of it."""
    own = [local(score) for score in scores.values()]
    return [float(rule(score)) for score in own if score.numel()]


def _warn_of_silence(masks: Masks) -> None:
    warn(
        f"at sparsity {masks.sparsity:.4g}, on the way to the one asked for, no connection moves "
        "the loss any more: the scores of the round before decide about the rest. Another scope "
        "('erk', 'layer') or a lower sparsity keeps more paths.",
    )
