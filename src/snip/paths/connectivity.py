"""Which kept connections lie on a path from input to output, and which units are dead.

A data-free probe: the model's own forward runs once, on one sample, with each mask in place of
its parameter, on numbers that say only "zero" or "something" (see `values`); two backward
passes then tell which connections lie between input and output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils.rnn import PackedSequence

from snip.common.errors import InputError
from snip.common.text import first_line
from snip.distributed.wrappers import unwrap
from snip.network.calls import Call, arguments, device_of, first_tensor, mapped, tensors_in
from snip.network.norms import normed_weights
from snip.network.untouched import undisturbed
from snip.paths.learned import LearnedOutputs
from snip.paths.probe import PathProbe
from snip.paths.values import DTYPE, constant, ones

Tensors = dict[str, torch.Tensor]
LARGEST_SAMPLE = 1 << 26  # values, which take 256 MB as float32


@dataclass(frozen=True)
class Connectivity:
    """What a probe found: nothing if the model cannot be followed, and then `reason` says why."""

    effective: Tensors = field(default_factory=dict)  # kept, and on a path from input to output
    outputs: int | None = None  # width of a [batch, width] output
    dead_outputs: tuple[int, ...] = ()  # those that no input reaches
    connected: bool = False  # whether any input reaches any output
    cut_inputs: tuple[str, ...] = ()  # arguments of which nothing reaches an output
    reached: tuple[int, int] | None = None  # with a reason: outputs reached, with masks and without
    reason: str | None = None


def connectivity(
    model: nn.Module, masks: Mapping[str, torch.Tensor], inputs: Any, batch_dim: int = 0
) -> Connectivity:
    """Which connections of `masks` lie on a path. Of `inputs` only shapes and integers matter."""
    model = unwrap(model)
    try:
        call = arguments(model, inputs)
        # One image of a batch is enough. With fewer dimensions the first one may be time, along
        # which recurrent weights have their paths: it is left whole.
        first = first_tensor(call)
        if batch_dim > 0 or (first is not None and first.ndim >= 4):
            call = one_sample(call, batch_dim)
        with probing(model):
            return _probe(model, masks, call)
    except Exception as error:  # a user's forward may do anything at all
        return Connectivity(reason=f"{type(error).__name__}: {first_line(error)}")


def example_input(model: nn.Module, shape: tuple[int, ...], dtype: str = "float32") -> torch.Tensor:
    """One sample of zeros with the shape and type that a mask's provenance remembers."""
    if prod(shape) > LARGEST_SAMPLE:  # a file may claim any shape
        raise InputError(
            f"a sample of shape {tuple(shape)} is too large to try: pass inputs=... instead."
        )
    try:
        return torch.zeros(1, *shape, dtype=getattr(torch, dtype), device=device_of(model))
    except NotImplementedError as error:  # quantised numbers have no zeros without a scale
        raise InputError(f"a sample of {dtype} cannot be made: pass inputs=... instead.") from error


def _probe(model: nn.Module, masks: Mapping[str, torch.Tensor], call: Call) -> Connectivity:
    leaves, outputs, sources = _forward(model, masks, call)
    effective, reached = _on_paths(leaves, outputs, sources)
    dead, width = _dead_outputs(reached)
    return Connectivity(
        {name: effective[name].cpu() & masks[name].cpu() for name in masks if name in effective},
        outputs=width,
        dead_outputs=dead,
        connected=any(bool(x.any()) for x in reached),
    )


def _forward(
    model: nn.Module, masks: Mapping[str, torch.Tensor], call: Call
) -> tuple[Tensors, list[torch.Tensor], list[torch.Tensor]]:
    """Run the model on masks. Returns the masks as leaves, its outputs, and where inputs enter."""
    leaves = {
        name: masks[name].to(parameter.device, DTYPE).requires_grad_()
        for name, parameter in model.named_parameters()
        if name in masks
    }
    probe = PathProbe()
    args, kwargs = entered(call, probe)
    with probe:
        output = functional_call(model, leaves | others(model, leaves), args, kwargs)
    outputs = [x for x in LearnedOutputs().among(output) if x.requires_grad]
    if not outputs or not probe.sources:
        raise ValueError("no output depends on a floating-point input or an embedding")
    return leaves, outputs, probe.sources


def _on_paths(
    leaves: Tensors, outputs: list[torch.Tensor], sources: list[torch.Tensor]
) -> tuple[Tensors, list[torch.Tensor]]:
    """Which connections lie on a path, and which numbers of each output an input reaches.

    A weight must lie between input and output: the gradient of the summed outputs with respect to
    the inputs depends on it, which the second derivative tells. A path may start at a bias: there
    the gradient of the summed outputs, the first derivative, is enough. Both are zero where no
    path leads to an output.
    """
    # By name: a scale has one dimension too, but no path starts at it.
    biases = [name for name in leaves if "bias" in name.rpartition(".")[2]]
    weights = [name for name in leaves if name not in biases]
    seeds = [ones(output.shape, output.device) for output in outputs]
    seen = [(seed * output).sum() for seed, output in zip(seeds, outputs, strict=True)]
    first = _gradients(seen, [*sources, *(leaves[name] for name in biases)], create_graph=True)
    entered = [gradient.sum() for gradient in first[: len(sources)] if gradient.requires_grad]
    if not entered:
        raise ValueError("the output does not depend on the input")
    second = _gradients(entered, [*seeds, *(leaves[name] for name in weights)])
    gradients = dict(zip(biases, first[len(sources) :], strict=True))
    gradients |= dict(zip(weights, second[len(seeds) :], strict=True))
    return {name: x != 0 for name, x in gradients.items()}, [x != 0 for x in second[: len(seeds)]]


def _gradients(
    scalars: list[torch.Tensor], leaves: list[torch.Tensor], *, create_graph: bool = False
) -> list[torch.Tensor]:
    total = torch.stack(scalars).sum()
    found = torch.autograd.grad(total, leaves, create_graph=create_graph, materialize_grads=True)
    if not all(bool(x.isfinite().all()) for x in found):
        raise ValueError("a function of the model has no finite derivative")
    return list(found)


def others(model: nn.Module, leaves: Tensors) -> Tensors:
    """Parameters without a mask count as ones, buffers as copies of their absolute values.

    The vectors from which a spectral norm estimates a length count as zeros: a weight is divided by
    that length, but it is no way for a signal from one connection to another.
    """
    ones = {
        name: torch.ones_like(parameter, dtype=DTYPE, requires_grad=False)
        for name, parameter in model.named_parameters()
        if name not in leaves and parameter.is_floating_point()
    }
    lengths = [x for normed in normed_weights(model).values() for x in normed.estimates().values()]
    buffers = {
        name: torch.zeros_like(buffer)
        if any(buffer is length for length in lengths)
        else constant(buffer.clone())
        for name, buffer in model.named_buffers()
    }
    return ones | buffers


def _dead_outputs(reached: list[torch.Tensor]) -> tuple[tuple[int, ...], int | None]:
    """The outputs that no input reaches, and how many outputs there are, of [batch, width]."""
    if len(reached) != 1 or reached[0].ndim != 2:
        return (), None
    alive = reached[0].any(0)
    return tuple(torch.nonzero(~alive).flatten().tolist()), len(alive)


def one_sample(call: Call, batch_dim: int) -> Call:
    """The call with the first sample alone of every tensor that has the batch's size."""
    if any(isinstance(x, PackedSequence) for x in (*call[0], *call[1].values())):
        return call  # its samples are interleaved
    first = next((x for x in tensors_in(call) if x.ndim > batch_dim), None)
    size = None if first is None else first.shape[batch_dim]

    def cut(x: torch.Tensor) -> torch.Tensor:
        same = x.ndim > batch_dim and x.shape[batch_dim] == size
        return x.narrow(batch_dim, 0, 1) if same else x

    found: Call = mapped(call, cut)
    return found


def entered(given: Any, probe: PathProbe) -> Any:
    """The same structure with every floating-point tensor as an input to follow."""
    return mapped(given, lambda x: probe.enter(torch.ones_like(x)) if x.is_floating_point() else x)


@contextmanager
def probing(model: nn.Module) -> Iterator[None]:
    """Eval mode with gradients and without autocast; everything is restored on the way out."""
    device = device_of(model).type
    # Recurrent layers keep a second list of their weights, which functional_call overwrites.
    flat = [(m, m._flat_weights, m._flat_weight_refs) for m in _recurrent(model)]
    with (
        undisturbed(model),
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast(device, enabled=False),
    ):
        model.eval()
        try:
            yield
        finally:
            for module, weights, refs in flat:
                module._flat_weights, module._flat_weight_refs = weights, refs


def _recurrent(model: nn.Module) -> Iterator[Any]:
    return (module for module in model.modules() if isinstance(module, nn.RNNBase))
