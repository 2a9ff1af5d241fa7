"""Batch normalisation fused with ReLU, and ReLU backward, on blocks [N/lanes, C, ..., lanes]."""

import math

import torch

from snip.common.errors import InputError
from snip.engine.kernels.conversions import check_blocks
from snip.engine.kernels.library import empty, kernel, pointer, vector

Tensor = torch.Tensor


def norm_train(
    x: Tensor,
    batch: int,
    gamma: Tensor | None,
    beta: Tensor | None,
    *,
    eps: float = 1e-5,
    relu: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise by the batch's statistics: output, mean [C] and biased variance [C]."""
    sizes = _sizes(x, batch, gamma, beta)
    y, mean, variance = empty(*x.shape), empty(x.shape[1]), empty(x.shape[1])
    kernel("norm_train")(
        *map(pointer, (x, gamma, beta, y, mean, variance)),
        *(*sizes, eps, int(relu), torch.get_num_threads()),
    )
    return y, mean, variance


def norm_apply(
    x: Tensor, batch: int, scale: Tensor, shift: Tensor, *, relu: bool = False
) -> Tensor:
    """x * scale + shift per channel (then ReLU): batch normalisation with fixed statistics."""
    sizes = _sizes(x, batch, scale, shift)
    y = empty(*x.shape)
    kernel("norm_apply")(
        *map(pointer, (x, scale, shift, y)), *(*sizes, int(relu), torch.get_num_threads())
    )
    return y


def norm_backward(
    x: Tensor,
    dy: Tensor,
    batch: int,
    gamma: Tensor | None,
    beta: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    *,
    eps: float = 1e-5,
    relu: bool = False,
    frozen: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, gamma and beta; `frozen` when mean and variance did not depend on x."""
    sizes = _sizes(x, batch, gamma, beta, mean, variance)
    _same(x, dy, "dy")
    dx, dgamma, dbeta = empty(*x.shape), empty(x.shape[1]), empty(x.shape[1])
    kernel("norm_backward")(
        *map(pointer, (x, dy, gamma, beta, mean, variance, dx, dgamma, dbeta)),
        *(*sizes, eps, int(relu), int(frozen), torch.get_num_threads()),
    )
    return dx, dgamma, dbeta


def relu_backward(
    dy: Tensor,
    batch: int,
    *,
    y: Tensor | None = None,
    out: Tensor | None = None,
    db: Tensor | None = None,
) -> None:
    """out = dy where y > 0 (all of dy without y), zero beyond the batch; db [C] = its sums."""
    sizes = _sizes(dy, batch, db)
    for name, tensor in (("y", y), ("out", out)):
        if tensor is not None:
            _same(dy, tensor, name)
    kernel("relu_backward")(*map(pointer, (dy, y, out, db)), *sizes, torch.get_num_threads())


def _sizes(x: Tensor, batch: int, *per_channel: Tensor | None) -> tuple[int, int, int, int]:
    lanes = check_blocks(x, batch, "x")
    for tensor in per_channel:
        vector(tensor, x.shape[1], "a parameter of the channels")
    return x.shape[1], math.prod(x.shape[2:]), lanes, batch


def _same(x: Tensor, other: Tensor, name: str) -> None:
    if other.shape != x.shape or other.dtype != x.dtype or not other.is_contiguous():
        raise InputError(
            f"{name} must be contiguous {x.dtype} {tuple(x.shape)}, not {other.dtype} "
            f"{tuple(other.shape)}, strides {other.stride()}"
        )
