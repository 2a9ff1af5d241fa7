"""Runs an accelerated network once beside its model, before it is handed out."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from snip.anatomy.calling import call, tensors_in
from snip.anatomy.undisturbed import undisturbed
from snip.common.errors import first_line
from snip.tracing.forward import copied

TOLERANCE = 1e-3  # of the largest output: batch norm magnifies rounding


def why_not(model: nn.Module, fast: nn.Module, inputs: torch.Tensor) -> str | None:
    """Why `fast` cannot stand in for `model`: what it raises or computes otherwise on `inputs`.

    Both run in eval mode, with and without gradients, because torch and the engine take other ways
    through the same forward then. A model that does not run on `inputs` alone proves nothing.
    """
    for grads in (True, False):
        with undisturbed(model), undisturbed(fast), torch.set_grad_enabled(grads):
            try:
                expected = _outputs(model, inputs)
            except Exception:  # it takes more than one tensor, or raises for reasons of its own
                return None
            try:
                found = _outputs(fast, inputs)
            except Exception as error:  # whatever a user's forward makes of sparse layers
                return first_line(error)
        if len(found) != len(expected) or not all(map(_close, found, expected)):
            return "its outputs would differ"
    return None


def _outputs(network: nn.Module, inputs: torch.Tensor) -> list[Any]:
    network.eval()
    return [tensor.detach() for tensor in tensors_in(call(network, copied(inputs)))]


def _close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    if found.shape != expected.shape or not expected.is_floating_point() or not expected.numel():
        return torch.equal(found, expected)
    finite = expected[expected.isfinite()].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    return torch.allclose(
        found.to(expected.dtype), expected, rtol=0, atol=TOLERANCE * largest, equal_nan=True
    )
