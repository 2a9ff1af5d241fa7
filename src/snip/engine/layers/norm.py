"""Batch norm on blocks, alone or in one pass with the convolution before it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from snip.engine.kernels.memory import readable
from snip.engine.kernels.norm import norm_apply, norm_backward, norm_train
from snip.engine.layers.conv import SparseConvolution
from snip.engine.layers.layouts import from_blocks, from_lines, to_blocks
from snip.engine.layers.products import After
from snip.engine.once import once_differentiable

Tensor = torch.Tensor


class _NormTrain(torch.autograd.Function):
    """Batch norm by the batch's own statistics (then ReLU)."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        gamma: Tensor | None,
        beta: Tensor | None,
        batch: int,
        eps: float,
        relu: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        x = x.contiguous()
        y, mean, variance = norm_train(x, batch, gamma, beta, eps=eps, relu=relu)
        ctx.settings = batch, eps, relu
        ctx.save_for_backward(x, gamma, beta, mean, variance)
        ctx.mark_non_differentiable(mean, variance)
        return y, mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, _mean: Tensor, _variance: Tensor) -> tuple[Any, ...]:
        return _norm_gradients(ctx, dy, frozen=False)


class _NormEval(torch.autograd.Function):
    """Batch norm by running statistics (then ReLU)."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        gamma: Tensor | None,
        beta: Tensor | None,
        mean: Tensor,
        variance: Tensor,
        batch: int,
        eps: float,
        relu: bool,
    ) -> Tensor:
        x = x.contiguous()
        scale, shift = scale_and_shift(gamma, beta, mean, variance, eps)
        ctx.settings = batch, eps, relu
        ctx.save_for_backward(x, gamma, beta, mean, variance)
        return norm_apply(x, batch, scale, shift, relu=relu)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        return (*_norm_gradients(ctx, dy, frozen=True), None, None)


def scale_and_shift(
    gamma: Tensor | None, beta: Tensor | None, mean: Tensor, variance: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """Batch norm by known statistics as one scale and one shift per channel."""
    assert variance is not None  # where there is a mean
    scale = torch.rsqrt(variance + eps) * (1 if gamma is None else gamma)
    return scale, (0 if beta is None else beta) - mean * scale


def _norm_gradients(ctx: Any, dy: Tensor, *, frozen: bool) -> tuple[Any, ...]:
    x, gamma, beta, mean, variance = ctx.saved_tensors
    batch, eps, relu = ctx.settings
    dx, dgamma, dbeta = norm_backward(
        *(x, dy.resolve_neg().contiguous(), batch, gamma, beta, mean, variance),
        eps=eps,
        relu=relu,
        frozen=frozen,
    )
    return (
        dx,
        dgamma if gamma is not None else None,
        dbeta if beta is not None else None,
        None,
        None,
        None,
    )


class BlockNorm(nn.modules.batchnorm._BatchNorm):
    """A batch norm of torch's, same parameters and buffers, that also takes blocks."""

    relu = False

    def on_blocks(self, x: Tensor, batch: int) -> Tensor:
        """Blocks -> blocks, in the module's own mode."""
        if not readable(x) or (self.weight is not None and not readable(self.weight)):
            plain = from_lines if isinstance(self, nn.BatchNorm1d) else from_blocks
            y = self.forward(plain(x, batch))
            return to_blocks(y.relu() if self.relu else y)
        if self.training or self.running_mean is None:
            _refuse_single_values(batch, x)
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        if not self.training and self.running_mean is not None:
            statistics = (self.weight, self.bias, self.running_mean, self.running_var)
            if torch.is_grad_enabled():
                return _NormEval.apply(x, *statistics, batch, self.eps, self.relu)
            scale, shift = scale_and_shift(*statistics, self.eps)
            return norm_apply(x.contiguous(), batch, scale, shift, relu=self.relu)
        y, mean, variance = _NormTrain.apply(x, self.weight, self.bias, batch, self.eps, self.relu)
        if self.training and self.running_mean is not None and self.running_var is not None:
            count = batch * x.shape[2] * x.shape[3]
            self._update_statistics(mean, variance * (count / max(count - 1, 1)))
        return y

    @torch.no_grad()
    def _update_statistics(self, mean: Tensor, variance: Tensor) -> None:
        momentum = self.momentum
        if momentum is None:  # a cumulative average
            assert self.num_batches_tracked is not None
            momentum = 1.0 / float(self.num_batches_tracked)
        assert self.running_mean is not None
        assert self.running_var is not None
        self.running_mean.lerp_(mean, momentum)
        self.running_var.lerp_(variance, momentum)


class BlockNorm1d(BlockNorm, nn.BatchNorm1d):
    """`nn.BatchNorm1d` that also takes blocks of height one."""


class BlockNorm2d(BlockNorm, nn.BatchNorm2d):
    """`nn.BatchNorm2d` that also takes blocks."""


def _refuse_single_values(batch: int, x: Tensor) -> None:
    """As torch does: one value per channel has no variance."""
    if batch * x.shape[2] * x.shape[3] == 1:
        raise ValueError(
            f"batch norm of {x.shape[1]} channels in training needs more than one value per "
            "channel: give it more images, or call eval()."
        )


def conv_norm(x: Tensor, batch: int, conv: SparseConvolution, norm: BlockNorm) -> Tensor:
    """A convolution and the batch norm behind it: in inference one pass over the memory."""
    mean, variance = norm.running_mean, norm.running_var
    tensors = (x, conv.weight, *(t for t in (norm.weight, mean) if t is not None))
    if torch.is_grad_enabled() or norm.training or mean is None or not all(map(readable, tensors)):
        return norm.on_blocks(conv.on_blocks(x, batch), batch)
    scale, shift = scale_and_shift(norm.weight, norm.bias, mean, variance, norm.eps)
    bias = conv.dense("bias")
    shift = shift if bias is None else torch.addcmul(shift, bias, scale)
    return conv.infer(x, batch, After(scale, shift, norm.relu))
