"""Parts that start at zero: scored as if they were awake, and given back as they were.

Many networks are drawn with parts that are zero at first, so that a block or a head begins as
nothing and grows: the last norm of a residual block, a head, LayerScale (1e-6), ReZero. A
connection behind such a part does not move the loss yet, so its sensitivity is zero (or a
millionth of the others') whatever it is worth later, and whole blocks would be pruned away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from snip.common.errors import InputError, warn
from snip.common.text import listed
from snip.distributed.shards import is_sharded, local, ranks_of_tensors
from snip.distributed.shards import part as own_part
from snip.masks.holding import is_emptied, rezero
from snip.models.initializers import fill, variance_scaling
from snip.network.layout import is_weight
from snip.network.network import Network, ParameterFacts
from snip.network.parameters import EMBEDDINGS, NORMS
from snip.scoring.gradients import Scores

# LayerScale begins at 1e-6 to 0.1; a scale that is everywhere the same and larger is no such part.
LARGEST_SCALE = 0.1
FIRST = 64  # elements that are looked at before all are


@dataclass(frozen=True)
class Part:
    """A parameter that has one value everywhere, zero or nearly so."""

    facts: ParameterFacts
    value: float
    is_weight: bool  # connections, which are drawn; otherwise a scale, which becomes one

    @property
    def name(self) -> str:
        """The parameter's name."""
        return self.facts.name

    def wake(self, generator: torch.Generator) -> None:
        """Give it the values that it is scored with."""
        parameter = self.facts.tensor
        if not self.is_weight:
            parameter.fill_(1.0)
            return
        fans = self.facts.layout.fans(parameter.shape)
        if not is_sharded(parameter):
            fill(parameter, variance_scaling, fans, generator)
            return
        # Drawn whole, so that a model that is split over ranks has the same draw.
        whole = nn.Parameter(torch.empty(parameter.shape, dtype=parameter.dtype))
        fill(whole, variance_scaling, fans, generator)
        local(parameter).copy_(own_part(whole, parameter))


@contextmanager
def scored_awake(
    network: Network, zero_parts: str, score: Callable[[], Scores], *, repeatable: bool
) -> Iterator[Scores]:
    """Give what `score` says of the model with its zero parts awake, and keep them so inside.

    The model is left as found. `zero_parts` is that of `snip.Scoring`; `repeatable` says whether
    `score` can be called twice.
    """
    if zero_parts == "as-is":
        yield score()
        return
    parts, doubtful = _asleep(network)
    with _awake(network, parts):
        scores = score()
    # A part that may not be a scale is woken only if some weight is silent without it and is not
    # with it, which one more scoring tells. Zeros come first: other values seldom silence a weight.
    for some in ([p for p in doubtful if not p.value], [p for p in doubtful if p.value]):
        if some and repeatable and (silent := silent_weights(scores)):
            with _awake(network, [*parts, *some]):
                again = score()
            if len(silent_weights(again)) < len(silent):
                scores, parts = again, [*parts, *some]
    if parts:
        _warn_of_woken(parts)
    with _awake(network, parts):
        yield scores


def check_signal(network: Network, scores: Scores) -> list[str]:
    """Refuse scores that are zero everywhere; warn of layers whose scores are, and name them."""
    weights = {name: score for name, score in scores.items() if is_weight(score.shape)} or scores
    silent = silent_scores(weights)
    if len(silent) == len(weights):
        raise InputError(
            "every connection sensitivity is zero: no weight moves the loss, so there is nothing "
            f"to rank. {_zero_weights(network, scores)}"
        )
    if silent:
        warn(
            f"the loss does not depend on {listed(silent)}: its scores are zero all over, "
            "so the layer goes first. Is it used in the loss, is it initialised to non-zero, and "
            "does no checkpoint(..., use_reentrant=True) keep its gradient back?",
        )
    return silent


def zero_biases(network: Network, scores: Scores) -> int:
    """Number of competing biases that are zero: without sensitivity, they are removed first."""
    facts = (network.parameters[name] for name in scores)
    biases = [local(fact.tensor) for fact in facts if not fact.is_weight]
    zero = sum(bias.numel() - int(bias.count_nonzero()) for bias in biases)
    return sum(network.ranks.all_gather(zero)) if network.sharded else zero


def silent_weights(scores: Scores) -> list[str]:
    """Names of the weights none of whose connections has a score."""
    return silent_scores({name: score for name, score in scores.items() if is_weight(score.shape)})


def silent_scores(scores: Scores) -> list[str]:
    """Names of those that are zero all over."""
    own = {name: local(score).reshape(-1) for name, score in scores.items()}
    # Nearly all are told by a few from all over, which spares a look at every score. The first few
    # may be those of a unit that is zero on all of a batch.
    quiet = {
        name
        for name, score in own.items()
        if not score[:: max(1, score.numel() // FIRST)].any() and not score.any()
    }
    silent = set.intersection(*ranks_of_tensors(scores).all_gather(quiet)) if scores else quiet
    return [name for name in scores if name in silent]


@contextmanager
def _awake(network: Network, parts: Sequence[Part]) -> Iterator[None]:
    """Give the parts values for the time of the block. The draw is the same at every call."""
    generator = torch.Generator().manual_seed(0)
    try:
        with torch.no_grad():
            for part in parts:
                part.wake(generator)
        if parts:
            rezero(network.module)  # what an earlier pruning removed stays removed
        yield
    finally:
        with torch.no_grad():
            for part in parts:
                part.facts.tensor.fill_(part.value)


def _asleep(network: Network) -> tuple[list[Part], list[Part]]:
    """The parts that start at zero, and those that may be scales or may be something else."""
    sure: list[Part] = []
    doubtful: list[Part] = []
    values = _only_values(network)
    for name, fact in network.parameters.items():
        value, competes = values[name], fact.why_out is None
        if value is None or not fact.tensor.requires_grad or isinstance(fact.layer, EMBEDDINGS):
            continue
        part = Part(fact, value, is_weight=competes)
        if competes:
            sure += [part] if fact.is_weight and not value else []
        elif isinstance(fact.layer, NORMS):
            sure += [part] if fact.key == "weight" else []
        else:
            (sure if _is_layer_scale(part) else doubtful).append(part)
    return sure, doubtful


def _is_layer_scale(part: Part) -> bool:
    """True for what must be a scale per unit that starts small.

    A single number may be a temperature, which divides, and PReLU's is a slope. Zeros may be a
    shift as well as a scale (ReZero).
    """
    several = part.facts.tensor.numel() > 1
    return part.value > 0 and several and not isinstance(part.facts.layer, nn.PReLU)


def _only_values(network: Network) -> dict[str, float | None]:
    """The one small value that all elements of each parameter have, if they do.

    What an earlier pruning removed has none: it does not start at zero.
    """
    tensors = {name: fact.tensor for name, fact in network.parameters.items()}
    own = {n: None if is_emptied(t) else _only_value(local(t)) for n, t in tensors.items()}
    if not network.sharded:
        return own
    # A rank that has no rows of a parameter has nothing to say about it.
    held = {name for name, tensor in tensors.items() if local(tensor).numel()}
    said = network.ranks.all_gather({n: value for n, value in own.items() if n in held})
    values = {name: {one[name] for one in said if name in one} for name in own}
    return {name: many.pop() if len(many) == 1 else None for name, many in values.items()}


def _only_value(parameter: torch.Tensor) -> float | None:
    """The one small value that all elements have, if they do."""
    if not parameter.numel() or not parameter.is_floating_point():
        return None
    values = parameter.reshape(-1)
    # Nearly all are told by their first few, which spares a look at every weight of a network.
    first, *others = values[:FIRST].tolist()
    if abs(first) > LARGEST_SCALE or others.count(first) < len(others):
        return None
    return float(first) if bool((values == values[0]).all()) else None


def _zero_weights(network: Network, scores: Scores) -> str:
    """Name the weights that are all zero, and the least that helps."""
    facts = (network.parameters[name] for name in scores)
    zero = [fact.name for fact in facts if fact.is_weight and not local(fact.tensor).any()]
    if not zero:
        return "Are all gradients zero? snip.initialize(model) redraws the weights."
    return (
        f"All of {listed(zero)} is zero: snip.Scoring(zero_parts='woken') scores it as if it were "
        "drawn, snip.initialize(model) redraws everything."
    )


def _warn_of_woken(parts: Sequence[Part]) -> None:
    weights = [part.name for part in parts if part.is_weight]
    scales = [part.name for part in parts if not part.is_weight]
    said = [f"{listed(weights)}, all zero, scored as if freshly drawn"] if weights else []
    said += [f"{listed(scales)}, zero or nearly so, scored as if one"] if scales else []
    warn(
        f"parts that start at zero hide what lies behind them: {'; '.join(said)}. Their values "
        "are unchanged. snip.Scoring(zero_parts='as-is') scores them as they are.",
    )
