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

from snip.common.errors import warn
from snip.common.text import listed
from snip.distributed.models import SHARDED, ranks_of, sharing
from snip.distributed.shards import local, ranks_of_tensors
from snip.distributed.shards import part as own_part
from snip.distributed.wrappers import is_sharded, unwrap
from snip.masks.holding import is_emptied, rezero
from snip.models.initializers import fans, fill, variance_scaling
from snip.network.layout import is_weight
from snip.network.network import prunable_parameters
from snip.network.parameters import EMBEDDINGS, NORMS, Predicate, parameter_places
from snip.scoring.batches import SeenBatches
from snip.scoring.gradients import Scores

# LayerScale begins at 1e-6 to 0.1; a scale that is everywhere the same and larger is no such part.
LARGEST_SCALE = 0.1
FIRST = 64


@dataclass(frozen=True)
class Part:
    """A parameter that has one value everywhere, zero or nearly so."""

    name: str
    module: nn.Module
    parameter: nn.Parameter
    value: float
    is_weight: bool  # connections, which are drawn; otherwise a scale, which becomes one

    def wake(self, generator: torch.Generator) -> None:
        """Give it the values that it is scored with."""
        if self.is_weight:
            fan = fans(self.module, self.name.rpartition(".")[2], self.parameter)
            # Drawn whole, so that a model that is split over processes has the same draw.
            whole = self.parameter
            if is_sharded(whole):
                whole = nn.Parameter(torch.empty(whole.shape, dtype=whole.dtype))
            fill(whole, variance_scaling, fan, generator)
            if whole is not self.parameter:
                local(self.parameter).copy_(own_part(whole, self.parameter))
        else:
            self.parameter.fill_(1.0)


@contextmanager
def scored_awake(
    model: nn.Module,
    seen: SeenBatches,
    params: Predicate | None,
    zero_parts: str,
    score: Callable[[], Scores],
) -> Iterator[Scores]:
    """Give what `score` says of the model with its zero parts awake, and keep them so inside.

    The model is left as found. `zero_parts` is that of `snip.Scoring`.
    """
    if zero_parts == "as-is":
        yield score()
        return
    parts, unknown = _asleep(unwrap(model), params)
    with _awake(model, parts):
        scores = score()
    # What is not surely a scale is woken only if something stays silent and is silent no more with
    # it, which scoring once more tells. Zeros come first: what is not zero seldom silences others.
    for doubtful in ([p for p in unknown if not p.value], [p for p in unknown if p.value]):
        if doubtful and seen.can_be_read_again and (silent := silent_weights(scores)):
            with _awake(model, [*parts, *doubtful]):
                again = score()
            if len(silent_weights(again)) < len(silent):
                scores, parts = again, [*parts, *doubtful]
    if parts:
        _say(parts)
    with _awake(model, parts):
        yield scores


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
    silent = set.intersection(*ranks_of_tensors(scores).everyones(quiet)) if scores else quiet
    return [name for name in scores if name in silent]


@contextmanager
def _awake(model: nn.Module, parts: Sequence[Part]) -> Iterator[None]:
    """Give the parts values for the time of the block. The draw is the same at every call."""
    generator = torch.Generator().manual_seed(0)
    try:
        with torch.no_grad():
            for part in parts:
                part.wake(generator)
        if parts:
            rezero(model)  # what an earlier pruning removed stays removed
        yield
    finally:
        with torch.no_grad():
            for part in parts:
                part.parameter.fill_(part.value)


def _asleep(model: nn.Module, params: Predicate | None) -> tuple[list[Part], list[Part]]:
    """The parts that start at zero, and those that may be scales or may be something else."""
    chosen, owners = prunable_parameters(model, params), parameter_places(model)
    values = _only_values(model)
    sure: list[Part] = []
    unknown: list[Part] = []
    for name, parameter in model.named_parameters():
        module, value = owners[name][0][1], values[name]
        if value is None or not parameter.requires_grad or isinstance(module, EMBEDDINGS):
            continue
        part = Part(name, module, parameter, value, is_weight=name in chosen)
        if name in chosen:
            sure += [part] if is_weight(parameter.shape) and not value else []
        elif isinstance(module, NORMS):
            sure += [part] if name.rpartition(".")[2] == "weight" else []
        else:
            (sure if _is_layer_scale(part) else unknown).append(part)
    return sure, unknown


def _is_layer_scale(part: Part) -> bool:
    """Whether it must be a scale per unit that starts small.

    A single number may be a temperature, which divides, and PReLU's is a slope. Zeros may be a
    shift as well as a scale (ReZero).
    """
    return part.value > 0 and part.parameter.numel() > 1 and not isinstance(part.module, nn.PReLU)


def _only_values(model: nn.Module) -> dict[str, float | None]:
    """The one small value that all elements of each parameter have, if they do.

    What an earlier pruning removed has none: it does not start at zero.
    """
    own = {
        name: None if is_emptied(parameter) else _only_value(local(parameter))
        for name, parameter in model.named_parameters()
    }
    if sharing(model) != SHARDED:
        return own
    empty = {name for name, parameter in model.named_parameters() if not local(parameter).numel()}
    # A process that has no rows of a parameter has nothing to say about it.
    said = ranks_of(model).everyones({n: value for n, value in own.items() if n not in empty})
    found = {name: {values[name] for values in said if name in values} for name in own}
    return {name: values.pop() if len(values) == 1 else None for name, values in found.items()}


def _only_value(parameter: torch.Tensor) -> float | None:
    """The one small value that all elements have, if they do."""
    if not parameter.numel() or not parameter.is_floating_point():
        return None
    values = parameter.reshape(-1)
    # Nearly all are told by their first few, which spares a look at every weight of a network.
    first, *others = values[:FIRST].tolist()
    if abs(first) > LARGEST_SCALE or any(other != first for other in others):
        return None
    return float(first) if bool((values == values[0]).all()) else None


def _say(parts: Sequence[Part]) -> None:
    weights = [part.name for part in parts if part.is_weight]
    scales = [part.name for part in parts if not part.is_weight]
    said = [f"{listed(weights)}, all zero, scored as if freshly drawn"] if weights else []
    said += [f"{listed(scales)}, zero or nearly so, scored as if one"] if scales else []
    warn(
        f"parts that start at zero hide what lies behind them: {'; '.join(said)}. Their values "
        "are unchanged. snip.Scoring(zero_parts='as-is') scores them as they are.",
    )
