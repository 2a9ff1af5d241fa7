"""Uses of weights that a forward multiplies with by itself: F.linear(x, self.decode.weight.t())."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from snip.distributed.wrappers import is_compiled
from snip.network.operations import Kind, operation_of

LAYERS = (Kind.LINEAR, Kind.CONVOLUTION, Kind.TRANSPOSED_CONVOLUTION)
MATRIX_PRODUCTS = ("matmul", "mm", "mv", "bmm")  # of their two arguments
SUMS_OF_PRODUCTS = ("addmm", "addmv", "baddbmm")  # a tensor is added to a product of two more
Found = Callable[[torch.Tensor, float], None]  # called with a tensor and the uses of an element


@contextmanager
def watched_functions(model: nn.Module, found: Found) -> Iterator[None]:
    """Tell `found` how often torch's functions use the tensors that they are given."""
    if any(is_compiled(m) or m._compiled_call_impl is not None for m in model.modules()):
        # Compiled code would be compiled anew to be watched, and once more afterwards.
        yield
        return
    with _Watch(found):
        yield


class _Watch(TorchFunctionMode):
    def __init__(self, found: Found) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        operation = operation_of(func)
        if operation.kind in LAYERS:
            self._layer(operation.kind, result, *args[:3], **_named(kwargs))
        elif operation.name in MATRIX_PRODUCTS and len(args) >= 2:
            self._product(result, *args[:2])
        elif operation.name in SUMS_OF_PRODUCTS and len(args) >= 3:
            self.found(args[0], result.numel() / max(1, args[0].numel()))
            self._product(result, *args[1:3])
        return result

    def _layer(self, kind: Kind, result: Any, input: Any, weight: Any, bias: Any = None) -> None:
        spread = kind is Kind.TRANSPOSED_CONVOLUTION  # whose weight is [in, out, ...]
        units = len(weight) if weight.ndim > 1 else 1
        self.found(weight, (input if spread else result).numel() / max(1, units))
        if bias is not None:
            self.found(bias, result.numel() / max(1, bias.numel()))

    def _product(self, result: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
        products = result.numel() * left.shape[-1]
        for factor in (left, right):
            self.found(factor, products / max(1, factor.numel()))


def _named(kwargs: Any) -> dict[str, Any]:
    return {name: kwargs[name] for name in ("input", "weight", "bias") if name in (kwargs or {})}
