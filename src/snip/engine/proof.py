"""Runs an accelerated network beside its model, before it is handed out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from snip.common.text import first_line
from snip.engine.layers.packing import PackedModule
from snip.network.calls import call, copied, tensors_in
from snip.network.untouched import undisturbed

# Of the largest output: batch norm magnifies rounding, most of all by the statistics of a batch.
TOLERANCE, BATCH_TOLERANCE = 1e-3, 1e-2
# Of a gradient's norm. Rounding may turn a ReLU on or off, which changes a gradient by far more
# than rounding; a gradient that is wrong or missing is off by all of its norm.
GRADIENT_TOLERANCE = 0.1
# Of the norm of all gradients: what is left of a gradient that is zero but for rounding, such as
# that of a bias in front of a batch norm.
GRADIENT_NOISE = 1e-3
# Train or eval mode, and whether with gradients: torch and the engine take other ways then.
SETTINGS = ((True, True), (False, True), (False, False))

# By a kind of layer, what it calls the share of its inputs that it drops.
DROPPING: dict[type[nn.Module], str] = {
    nn.modules.dropout._DropoutNd: "p",
    nn.RNNBase: "dropout",
    nn.MultiheadAttention: "dropout",
}

Gradients = dict[str, torch.Tensor]


def why_not(model: nn.Module, fast: nn.Module, inputs: Any) -> str | None:
    """Why `fast` cannot stand in for `model`: what it raises or computes otherwise on `inputs`.

    Outputs are compared, and the gradients of a sum of them with respect to all parameters. Dropout
    drops nothing meanwhile. Where the forward draws random numbers all the same, the two may draw
    them for other positions, so that it is only seen to run. A setting in which the model itself
    does not run proves nothing.
    """
    with _nothing_dropped(model), _nothing_dropped(fast):
        return _why_not(model, fast, inputs)


def _why_not(model: nn.Module, fast: nn.Module, inputs: Any) -> str | None:
    for training, grads in SETTINGS:
        with undisturbed(model) as before, torch.set_grad_enabled(grads):
            try:
                expected = _outcome(model.train(training), inputs)
            except Exception:  # for reasons of the user's, such as a batch norm of a single value
                continue
            random = before.has_drawn()
        with undisturbed(fast), torch.set_grad_enabled(grads):
            try:
                found = _outcome(fast.train(training), inputs)
                tolerance = BATCH_TOLERANCE if training else TOLERANCE
                fault = None if random else _difference(fast, found, expected, tolerance)
            except Exception as error:  # of a user's forward, or of outputs that nobody can compare
                return first_line(error)
        if fault is not None:
            return fault
    return None


@contextmanager
def _nothing_dropped(network: nn.Module) -> Iterator[None]:
    """Set the share that torch's own layers drop to zero for a while."""
    found = [
        (module, name, share)
        for module in network.modules()
        for kind, name in DROPPING.items()
        if issubclass(_kind(module), kind) and (share := getattr(module, name, 0.0))
    ]
    try:
        for module, name, _ in found:
            setattr(module, name, 0.0)
        yield
    finally:
        for module, name, share in found:
            setattr(module, name, share)


def _kind(module: nn.Module) -> type[nn.Module]:
    """A layer's class, or that of the ordinary layer it stands for."""
    return module.kind if isinstance(module, PackedModule) else type(module)


def _outcome(network: nn.Module, inputs: Any) -> tuple[list[torch.Tensor], Gradients]:
    """The outputs, and the gradients of a weighted sum of them where they have any.

    The weights differ, because the plain sum of a softmax has no gradient.
    """
    outputs = list(tensors_in(call(network, copied(inputs))))
    differentiable = [y for y in outputs if y.requires_grad]
    weights = {name: p for name, p in network.named_parameters() if p.requires_grad}
    gradients: Gradients = {}
    if differentiable and weights:
        total = torch.stack([(y * _ramp(y)).sum() for y in differentiable]).sum()
        found = torch.autograd.grad(total, list(weights.values()), allow_unused=True)
        # An embedding's may be sparse, of which little can be asked.
        gradients = {n: g.to_dense() for n, g in zip(weights, found, strict=True) if g is not None}
    return [y.detach() for y in outputs], gradients


def _ramp(y: torch.Tensor) -> torch.Tensor:
    return torch.linspace(-1, 2, y.numel(), dtype=y.dtype, device=y.device).view(y.shape)


def _difference(
    fast: nn.Module,
    found: tuple[list[torch.Tensor], Gradients],
    expected: tuple[list[torch.Tensor], Gradients],
    tolerance: float,
) -> str | None:
    """What differs between the outcomes of the accelerated network and its model."""
    same = map(partial(_close, tolerance), found[0], expected[0])
    if len(found[0]) != len(expected[0]) or not all(same):
        return "its outputs would differ"
    noise = GRADIENT_NOISE * max((float(g.norm()) for g in expected[1].values()), default=0.0)
    for name, parameter in fast.named_parameters():
        wanted = expected[1].get(name)
        wanted = torch.zeros_like(parameter) if wanted is None else _kept(fast, name, wanted)
        if not wanted.isfinite().all():
            continue  # the user's own overflow has no size to compare with
        off = wanted - found[1].get(name, torch.zeros_like(parameter))
        if not float(off.norm()) <= GRADIENT_TOLERANCE * float(wanted.norm()) + noise:
            return f"the gradient of {name} would differ"
    return None


def _kept(fast: nn.Module, name: str, gradient: torch.Tensor) -> torch.Tensor:
    """The part of an ordinary parameter's gradient that its sparse layer has."""
    owner, _, key = name.rpartition(".")
    layer = fast.get_submodule(owner)
    return layer.packed[key].pack(gradient) if isinstance(layer, PackedModule) else gradient


def _close(tolerance: float, found: torch.Tensor, expected: torch.Tensor) -> bool:
    if found.shape != expected.shape or not expected.is_floating_point() or not expected.numel():
        return torch.equal(found, expected)
    finite = expected[expected.isfinite()].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    return torch.allclose(
        found.to(expected.dtype), expected, rtol=0, atol=tolerance * largest, equal_nan=True
    )
