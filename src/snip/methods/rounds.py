"""Score a network by a method: once, or in rounds that each remove a part."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import nn

from snip.common.console import track
from snip.common.errors import InputError, SnipWarning, nearest, warn
from snip.distributed.shards import local, part, ranks_of_tensors, sharded_like
from snip.masks import Masks, held_masks
from snip.methods.kinds import DATA, NOTHING, AtInitialisation, one_shot
from snip.network.calls import Call, example, shared_call
from snip.network.network import Network
from snip.network.reader import LearnedOutputs, Reader, Seen
from snip.network.untouched import undisturbed
from snip.scoring.batches import Data, LossFn, cross_entropy, look, name_of
from snip.scoring.gradients import Scores
from snip.scoring.settings import Scoring
from snip.scoring.waking import check_signal, scored_awake, silent_scores, zero_biases
from snip.selection.costs import element_flops
from snip.selection.granularity import Granularity
from snip.selection.request import Request
from snip.selection.select import Selection


@dataclass(frozen=True, eq=False)
class Scored:
    """Scores, and what was seen while they were made: ready to be selected from."""

    scores: Scores
    silent: tuple[str, ...]  # layers on which the loss does not depend
    seen: Seen
    selection: Selection
    request: Request  # with the granularity bound to the network
    about: Mapping[str, Any]  # fields of the provenance

    def select(self, **changes: Any) -> Masks:
        """Masks by the request, or by the request with some fields changed."""
        masks = self.selection.masks(self.scores, replace(self.request, **changes))
        return masks.with_provenance(**self.about)


@dataclass(frozen=True, eq=False)
class Scorer:
    """A network with the method, the data and the settings to score it."""

    network: Network
    method: AtInitialisation
    data: Data
    loss_fn: LossFn | None
    scoring: Scoring

    def scores(self, dense: Scores | None = None) -> Scores:
        """The scores of the network as it is; `dense` has the weights before any round."""
        returning = {"dense": dense} if self.method.returns else {}
        return self.method.score(
            self.network, self.data, self.loss_fn, scoring=self.scoring, **returning
        )

    def awake(self, score: Callable[[], Scores]) -> AbstractContextManager[Scores]:
        """Call `score` with the parts that start at zero awake, and keep them so inside."""
        blind = self.method.reads == NOTHING
        zero_parts = "as-is" if blind else self.scoring.zero_parts
        repeatable = self.data.can_be_read_again
        return scored_awake(self.network, zero_parts, score, repeatable=repeatable)

    def score(self, request: Request) -> Scored:
        """Score, in rounds if the method has some; the network is left as found."""
        watch = _Watch(self)
        within = held_masks(self.network.module)
        with self.awake(watch.scores) as scores:
            _require_known(self.network, scores)
            silent = check_signal(self.network, scores)
            seen = watch.seen
            costs = element_flops(scores, seen.uses) if request.by_cost else None
            selection = Selection(self.network, within, costs)
            bound = replace(request, granularity=self._bound(request.granularity, seen.call))
            scores, rounds = _in_rounds(self, scores, selection, bound)
        about = {
            **self._provenance(),
            "rounds": rounds,
            "uses": seen.uses,
            "zero_biases": zero_biases(self.network, scores),
        }
        return Scored(scores, tuple(silent), seen, selection, bound, about)

    def _bound(self, granularity: Granularity, call: Call | None) -> Granularity:
        """The granularity, bound to the network."""
        inputs = None
        if granularity.needs_inputs:
            model = self.network.given
            if call is not None:
                inputs = call.inputs(model)
            else:  # a loss may call parts of the model and never the whole
                inputs = next((example(model, batch) for batch in self.data.batches), None)
        return granularity.on(self.network.given, inputs)

    def _provenance(self) -> dict[str, Any]:
        about = {**self.data.provenance(), **asdict(self.scoring)}
        if self.method.reads != DATA:  # one batch was looked at, and none was scored
            return about | {"batches": 0, "samples": 0}
        counts = self.network.ranks.all_gather((self.data.count, self.data.samples))
        about |= {"batches": sum(n for n, _ in counts), "samples": sum(n for _, n in counts)}
        return about | {"loss": name_of(self.loss_fn or cross_entropy)}


class _Watch:
    """The first scoring, watched: it shows how the model is called and uses its weights."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer
        self.seen = Seen()

    def scores(self) -> Scores:
        """Score, and note what a forward shows."""
        scorer, network = self.scorer, self.scorer.network
        # Paths need whole layers, and a call to follow.
        if network.sharded or scorer.data.none_given:
            return scorer.scores()
        by_data = scorer.method.reads == DATA
        with Reader(network.given) as reader:
            if by_data:
                scores = scorer.scores()
            else:
                with network.ranks.raise_on_all():
                    look(network, scorer.data, scorer.loss_fn)
        # Ranks that share the model must follow the same paths: those of the first one's call, to
        # the outputs from which any of them learns.
        ranks = network.ranks
        read = reader.seen
        learned = LearnedOutputs.of_all(ranks.all_gather(read.learned))
        uses = ranks.broadcast(read.uses)
        call = shared_call(ranks, read.call, network.given)
        self.seen = replace(read, uses=uses, call=call, learned=learned)
        return scores if by_data else scorer.scores()


def _require_known(network: Network, scores: Scores) -> None:
    """Refuse scores of parameters that the model does not have."""
    for name in scores:
        if name not in network.parameters:
            unknown = nearest("parameter", name, network.parameters)
            raise InputError(f"these scores are of another model: {unknown}")


def _in_rounds(
    scorer: Scorer, scores: Scores, selection: Selection, request: Request
) -> tuple[Scores, int]:
    """The scores of the last round, from those of the first, and the number of rounds.

    Unless connections may return, those that were removed rank below all others, in the order in
    which they went, so that a repair of the last round's masks takes back the best of them.
    """
    steps = _requests_of_rounds(scorer.method, request)
    rounds = 1
    if not steps:
        return scores, rounds
    network = scorer.network
    weights = {name: network.parameters[name].tensor for name in scores}
    dense = {name: weight.detach().clone() for name, weight in weights.items()}
    masks: Masks | None = None
    with undisturbed(network.given), _given_back(weights, dense):
        for step in track(steps, description="rounds", total=len(steps)):
            chosen = _early_masks(selection, scores, step)
            if chosen is None or chosen == masks:
                continue  # the scores would be the same
            masks = chosen
            _write(network, weights, dense, masks)
            rescored = scorer.scores(dense)
            if len(silent_scores(rescored)) == len(rescored):
                _warn_of_silence(masks)
                break
            scores = rescored if scorer.method.returns else _removed_last(rescored, scores, masks)
            rounds += 1
    return scores, rounds


def _requests_of_rounds(method: AtInitialisation, request: Request) -> list[Request]:
    """The requests of all rounds but the last."""
    if method.rounds is one_shot:
        return []
    early = replace(request, granularity=request.granularity.for_early_rounds, floor=request.least)
    sparsities = method.rounds(request.sparsity)[:-1]
    if isinstance(request.scope, str):
        return [replace(early, sparsity=sparsity) for sparsity in sparsities]
    own = {name: method.rounds(sparsity) for name, sparsity in request.scope.items()}
    return [
        replace(early, sparsity=sparsity, scope={name: own[name][index] for name in own})
        for index, sparsity in enumerate(sparsities)
    ]


def _early_masks(selection: Selection, scores: Scores, request: Request) -> Masks | None:
    """The masks of an early round; None if there are none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SnipWarning)  # the last round says it
        # A model that is pruned already may have less left in a layer than an early round asks.
        with suppress(InputError):
            return selection.masks(scores, request)
    return None


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
def _write(
    network: Network, weights: Mapping[str, nn.Parameter], dense: Scores, masks: Masks
) -> None:
    """Write the weights that the masks keep, and zeros elsewhere."""
    for name, weight in weights.items():
        whole, kept = local(dense[name]), part(masks[name], weight).to(weight.device)
        local(weight).copy_(torch.where(kept, whole, whole.new_zeros(())))
    for name, normed in network.normed.items():
        if name in masks:
            normed.renew()


def _removed_last(rescored: Scores, before: Scores, masks: Masks) -> Scores:
    """The new scores, and below them those that removed connections had before."""
    ranks = ranks_of_tensors(rescored)
    highest = max(ranks.all_gather(max(_all(before, torch.max), default=-math.inf)))
    lowest = min(ranks.all_gather(min(_all(rescored, torch.min), default=math.inf)))
    shift = 2 * max(0.0, highest - lowest)  # twice, so that none of them ties with one that stays
    ranked = {}
    for name, score in rescored.items():
        kept = part(masks[name], score).to(score.device)
        own = torch.where(kept, local(score), local(before[name]) - shift)
        ranked[name] = sharded_like(own, score)
    return ranked


def _all(scores: Scores, rule: Callable[[torch.Tensor], torch.Tensor]) -> list[float]:
    """`rule` of the part of each tensor that this rank holds."""
    own = [local(score) for score in scores.values()]
    return [float(rule(score)) for score in own if score.numel()]


def _warn_of_silence(masks: Masks) -> None:
    warn(
        f"at sparsity {masks.sparsity:.4g}, on the way to the one asked for, no connection moves "
        "the loss any more: the scores of the round before decide about the rest. Another scope "
        "('erk', 'layer') or a lower sparsity keeps more paths.",
    )
