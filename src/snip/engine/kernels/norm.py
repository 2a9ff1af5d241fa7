"""Batch normalisation fused with ReLU, and ReLU backward, on blocks [N/lanes, C, ..., lanes]."""

import math

import torch

from snip.engine.kernels.conversions import check_blocks
from snip.engine.kernels.library import kernel
from snip.engine.kernels.memory import empty, pointer

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
    sizes = _sizes(x, batch)
    y, mean, variance = empty(*x.shape), empty(x.shape[1]), empty(x.shape[1])
    kernel("norm_train")(
        *(_blocks(x, x), *_channels(x, gamma=gamma, beta=beta), _blocks(x, y)),
        *_channels(x, mean=mean, variance=variance),
        *(*sizes, eps, int(relu), torch.get_num_threads()),
    )
    return y, mean, variance


def norm_apply(
    x: Tensor, batch: int, scale: Tensor, shift: Tensor, *, relu: bool = False
) -> Tensor:
    """x * scale + shift per channel (then ReLU): batch normalisation with fixed statistics."""
    sizes = _sizes(x, batch)
    y = empty(*x.shape)
    kernel("norm_apply")(
        *(_blocks(x, x), *_channels(x, scale=scale, shift=shift), _blocks(x, y)),
        *(*sizes, int(relu), torch.get_num_threads()),
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
    sizes = _sizes(x, batch)
    dx, dgamma, dbeta = empty(*x.shape), empty(x.shape[1]), empty(x.shape[1])
    kernel("norm_backward")(
        *(_blocks(x, x), _blocks(x, dy, "dy")),
        *_channels(x, gamma=gamma, beta=beta, mean=mean, variance=variance),
        *(_blocks(x, dx), *_channels(x, dgamma=dgamma, dbeta=dbeta)),
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
    sizes = _sizes(dy, batch)
    kernel("relu_backward")(
        *(_blocks(dy, dy, "dy"), _blocks(dy, y, "y"), _blocks(dy, out, "out")),
        *(*_channels(dy, db=db), *sizes, torch.get_num_threads()),
    )


def _sizes(x: Tensor, batch: int) -> tuple[int, int, int, int]:
    lanes = check_blocks(x, batch, "x")
    return x.shape[1], math.prod(x.shape[2:]), lanes, batch


def _blocks(x: Tensor, other: Tensor | None, name: str = "x") -> int | None:
    """Address of blocks of the same shape as x."""
    return pointer(other, x.shape, name)


def _channels(x: Tensor, **tensors: Tensor | None) -> list[int | None]:
    """Addresses of tensors that have one number for each channel of x."""
    return [pointer(tensor, (x.shape[1],), name) for name, tensor in tensors.items()]
