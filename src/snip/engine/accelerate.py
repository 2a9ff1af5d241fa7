"""`accelerate`: the same network with only its surviving weights; `densify`: and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from snip.common.errors import InputError, KindError, warn, warn_once
from snip.common.text import listed
from snip.common.timing import Work
from snip.distributed.wrapped import require_unwrapped, require_whole, unwrap
from snip.engine.accelerated import not_accelerated
from snip.engine.exchange import with_ordinary_kinds, with_ordinary_layers
from snip.engine.kernels.library import available, reason
from snip.engine.layers.packing import DENSE, SPARSE, Ways
from snip.engine.pace import (
    TIMING_NOISE,
    Seconds,
    WorkOf,
    channels_last_seconds,
    is_slower,
    step_of,
    step_seconds,
    timing_decides,
)
from snip.engine.sparse_copy import DenseError, SparseCopies
from snip.masks import Masks, held_masks
from snip.masks.holding import leave
from snip.masks.masks import MIN_ZERO_SHARE, all_zero, share_of_zeros
from snip.network.calls import copy_of, device_off_cpu, example, mapped
from snip.network.network import Network, prunable_parameters
from snip.network.parameters import Accelerated

LOWER = (torch.bfloat16, torch.float16)
DOUBLE = 2  # channels last does not make a dense float32 network so many times as fast


def accelerate(
    model: nn.Module,
    batch: Any,
    *,
    masks: Masks | None = None,
    ways: Mapping[str, str] | None = None,
) -> nn.Module:
    """A network with the outputs and gradients of the pruned `model` that does only its work.

    It is a copy, of the model's own class, with the same names everywhere.
    `batch` is one typical batch, as the model is called: a tensor, (inputs, targets), a tuple of
    arguments or a dict of keywords. Layers and the whole network are timed on it, in the mode that
    the model is in: for training or, after `model.eval()`, for inference.
    `ways` decides instead of the timing, by layer: "sparse" (all layers that it does not name),
    "winograd" (a dense kernel in the engine's layout) or "dense" (torch's own).
    Without native kernels, where the copy would not compute the same and where it would be slower,
    the model itself comes back, with a warning: it runs dense.
    Sparse layers compute in float32. Inside `torch.autocast`, call this there too: the model is
    then timed in that precision.
    """
    with torch.inference_mode(False):  # gradients are compared, and the copy may be trained later
        found = sparse_or_dense(model, batch, masks=masks, ways=ways, timed=ways is None)
        if found.why:
            warn_dense(found.why)
        for sentence in (*found.remarks, _in_channels_last(found, batch)):
            if sentence:
                warn(sentence)
        return found.settled()


def warn_dense(why: str) -> None:
    """Warn that a network runs dense; where there are no kernels, as all do, only once."""
    (warn if available() else warn_once)(why)


def densify(model: nn.Module) -> nn.Module:
    """An ordinary model of the class that `accelerate` was given, with the weights as they are now.

    It holds the masks and stands apart: the network given stays as it is. Of an ordinary model, as
    `accelerate` gives back one that is faster dense, it is a copy.
    """
    require_whole(model, "snip.densify")
    model = unwrap(model)
    with torch.inference_mode(False):  # the copy may be trained later
        if not isinstance(model, Accelerated):
            return copy_of(model)
        return with_ordinary_kinds(not_accelerated(with_ordinary_layers(model)))


@dataclass(frozen=True)
class Outcome:
    """An accelerated network, or the model itself and the sentence why it runs dense.

    Nothing is changed until it is settled: a warning that a user made an error comes before.
    """

    model: nn.Module
    network: nn.Module
    ways: Ways = field(default_factory=dict)  # of layers that do not run sparse
    seconds: Seconds = field(default_factory=dict)  # of a step, dense and sparse, if timed
    why: str = ""
    remarks: tuple[str, ...] = ()  # what else the user should know
    masks: Masks | None = None  # for the model to hold, which held none

    def settled(self) -> nn.Module:
        """The network, after what it means for the model: its masks, and that it trains no more."""
        if self.masks is not None:
            self.masks.apply(self.model)
        if self.network is not self.model:
            leave(self.model)
        return self.network


def sparse_or_dense(
    model: nn.Module,
    batch: Any,
    *,
    masks: Masks | None = None,
    ways: Mapping[str, str] | None = None,
    timed: bool,
    work_of: WorkOf | None = None,
) -> Outcome:
    """What `accelerate` does; if `timed`, the model itself is the outcome where that is faster.

    `work_of` says what is timed of a network: unless it is given, a step of an ordinary loop.
    """
    require_unwrapped(model, "snip.accelerate")
    model = unwrap(model)
    if isinstance(model, Accelerated):
        raise InputError("the model is accelerated already: snip.densify(model) takes it back.")
    if ways is not None and not isinstance(ways, Mapping):
        raise KindError(f"ways is {ways!r}: give a way by layer, such as {{'conv1': 'dense'}}.")
    held = held_masks(model)
    found = _checked(model, held if masks is None else masks)
    inputs = _in_float32(example(model, batch))
    timed_work = _as_called_here(work_of or step_of(inputs, training=model.training))
    # Copies are compared with the model, and layers timed, in the precision of sparse layers.
    with torch.autocast("cpu", enabled=False):
        outcome = _outcome(model, found, inputs, ways, timed_work if timed else None)
    if outcome.network is model and not outcome.why:
        outcome = replace(outcome, why=_slower(outcome))
    if held is not None:
        return outcome
    if masks is None:
        return replace(outcome, remarks=(*outcome.remarks, _holds_zeros(model, found)), masks=found)
    # Masks that were only given: as a copy would, the model keeps its zeros if it comes back.
    return replace(outcome, masks=found if outcome.network is model else None)


def _in_float32(inputs: Any) -> Any:
    """Inputs in the precision of the weights, where autocast would have cast them to another."""
    if not torch.is_autocast_enabled("cpu"):
        return inputs
    return mapped(inputs, lambda x: x.float() if x.dtype in LOWER else x)


def _as_called_here(work_of: WorkOf) -> WorkOf:
    """The same work under the autocast that is on here, wherever it is done."""
    if not torch.is_autocast_enabled("cpu"):
        return work_of
    dtype = torch.get_autocast_dtype("cpu")

    def under_autocast(network: nn.Module) -> Work:
        work = work_of(network)

        def run() -> object:
            try:
                with torch.autocast("cpu", dtype):
                    return work()
            finally:
                # Cast weights are kept until the outermost block ends, which is the caller's; a
                # training step casts weights of its own.
                torch.clear_autocast_cache()

        return run

    return under_autocast


def _outcome(
    model: nn.Module,
    masks: Masks,
    inputs: Any,
    ways: Mapping[str, str] | None,
    work_of: WorkOf | None,
) -> Outcome:
    """The accelerated network, or why there is none; without `work_of` it is not timed."""
    if not available():
        return Outcome(model, model, why=f"running dense: {reason()}")
    device = device_off_cpu(model)
    if device is not None:
        kind = type(model).__name__
        why = f"{kind} runs dense: it is on {device}, and sparse layers compute on CPUs."
        return Outcome(model, model, why=why)
    lower = next((p.dtype for p in model.parameters() if p.dtype in LOWER), None)
    if lower is not None:
        kind, dtype = type(model).__name__, str(lower).removeprefix("torch.")
        why = f"{kind} runs dense: it has {dtype} weights, and sparse layers compute in float32."
        return Outcome(model, model, why=why)
    try:
        copies = SparseCopies(model, masks, inputs)
        chosen = dict(copies.fastest_ways() if ways is None else ways)
        if work_of is not None and timing_decides():
            return _timed(copies, chosen, work_of)
        return Outcome(model, copies.copy(chosen), chosen, remarks=copies.remarks)
    except DenseError as error:
        return Outcome(model, model, why=f"{type(model).__name__} runs dense: {error}.")


def _checked(model: nn.Module, masks: Mapping[str, torch.Tensor] | None) -> Masks:
    """Masks that are applied to the model; without any, those of the zeros of a loaded model."""
    if masks is not None:
        masks = masks if isinstance(masks, Masks) else Masks(masks)
        masks.check(model)
        return masks
    Network.of(model).refuse_torch_pruned()
    masks = Masks.from_zeros(model)
    zeros = share_of_zeros(prunable_parameters(model))
    if zeros < MIN_ZERO_SHARE:
        raise InputError(
            f"the model is not pruned: it holds no masks, and {zeros:.1%} of its weights "
            "are zero, those of tensors that are zero all over not counted. Call "
            "snip.prune(model, batch, sparsity=...), or load the weights of a pruned model into it."
        )
    return masks


def _holds_zeros(model: nn.Module, masks: Masks) -> str:
    """What becomes of the zeros of a loaded model."""
    unsure = all_zero(prunable_parameters(model))
    free = (
        f" {listed(unsure)}: zero all over, as layers are that start so, hence left free to learn. "
        "What was pruned away whole needs its masks first (snip.Masks.load(path).apply(model))."
    )
    return (
        f"this {type(model).__name__} held no masks, but {masks.sparsity:.1%} of its weights are "
        "zero: they are taken for pruned and held at zero from now on (snip.release(model) lets "
        f"them grow).{free if unsure else ''}"
    )


@dataclass(frozen=True)
class _Tried:
    """An accelerated copy, and the seconds of a step of the model and of it."""

    ways: Ways
    network: nn.Module
    seconds: Seconds

    @property
    def share(self) -> float:
        """Of the model's time: the two are timed in turns, other tries at other times."""
        return self.seconds[SPARSE] / self.seconds[DENSE]


def _timed(copies: SparseCopies, ways: Ways, work_of: WorkOf) -> Outcome:
    """The accelerated network, or the model if that is faster.

    Layers are timed alone, which does not show what one native call of them all gains: where that
    is possible it is tried as well. If the network is slower still, the layers that are slower
    alone run dense in another try; those of a network that was not traced do so already.
    """
    model = copies.model

    def tried(how: Ways, network: nn.Module) -> _Tried:
        return _Tried(how, network, step_seconds(model, network, work_of))

    best = tried(ways, copies.copy(ways))
    whole = copies.in_one_call() if ways else None
    if whole is not None:
        best = min(best, tried({}, whole), key=lambda one: one.share)
    if is_slower(best.seconds) and copies.traced is not None:
        fewer = copies.without_losing(ways)
        if fewer != ways:
            best = tried(fewer, copies.copy(fewer))
    if is_slower(best.seconds):
        return Outcome(model, model, {}, best.seconds)
    return Outcome(model, best.network, best.ways, best.seconds, remarks=copies.remarks)


def _slower(found: Outcome) -> str:
    """A sentence about a network that would be slower accelerated, as the caller runs it."""
    autocast = torch.is_autocast_enabled("cpu")
    precision = f" in {torch.get_autocast_dtype('cpu')}".replace("torch.", "") if autocast else ""
    return (
        f"{type(found.model).__name__} runs dense: accelerated it would take "
        f"{_ms(found.seconds[SPARSE])} for this batch, and takes {_ms(found.seconds[DENSE])} as "
        f"it is{precision}."
    )


def _in_channels_last(found: Outcome, batch: Any) -> str:
    """A sentence about torch's other memory format, if the model itself is fastest in that."""
    lower = torch.is_autocast_enabled("cpu")  # channels last may be far faster then
    if not found.seconds or (found.seconds[DENSE] >= DOUBLE * found.seconds[SPARSE] and not lower):
        return ""
    best = found.seconds[DENSE if found.network is found.model else SPARSE]
    work_of = step_of(example(found.model, batch), training=found.model.training)
    last = channels_last_seconds(found.model, _as_called_here(work_of))
    if best <= TIMING_NOISE * last:
        return ""
    return (
        f"in torch's channels-last format this {type(found.model).__name__} takes {_ms(last)} for "
        f"this batch, less than the {_ms(best)} that it takes as it comes back: train or run "
        "model.to(memory_format=torch.channels_last) instead."
    )


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"
