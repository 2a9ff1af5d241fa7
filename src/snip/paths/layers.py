"""Rules of norms, pooling, embeddings and casts, on numbers that follow paths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from snip.network.operations import operation_of
from snip.paths.values import DTYPE, constant, something

Tensor = torch.Tensor


def layer_norm(
    function: Any, x: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 0
) -> Tensor:
    """Subtracting the mean makes every feature depend on all of them."""
    dims = tuple(range(-len(shape), 0))
    return something(_affine(x + x.mean(dims, keepdim=True), weight, bias))


def rms_norm(
    function: Any, x: Tensor, shape: Any, weight: Any = None, eps: float | None = None
) -> Tensor:
    """Every feature is divided by what depends on all of them, but a zero stays zero."""
    dims = tuple(range(-len(shape), 0))
    return something(_affine(x * (1 + x.mean(dims, keepdim=True)), weight, None))


def group_norm(
    function: Any, x: Tensor, groups: int, weight: Any = None, bias: Any = None, eps: float = 0
) -> Tensor:
    """As layer norm, within each group of channels."""
    grouped = x.unflatten(1, (groups, -1))
    mixed = grouped + grouped.mean(tuple(range(2, grouped.ndim)), keepdim=True)
    return something(_affine(mixed.flatten(1, 2), _channels(weight, x), _channels(bias, x)))


def channel_norm(
    function: Any,
    x: Tensor,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    """Batch and instance norm: a channel depends on itself."""
    return something(_affine(constant(x), _channels(weight, x), _channels(bias, x)))


def weight_norm(function: Any, direction: Tensor, length: Tensor, dim: int = 0) -> Tensor:
    """A parametrised weight: its direction times its length."""
    return direction * length


def normalize(function: Any, x: Tensor, p: float = 2.0, dim: Any = 1, **kwargs: Any) -> Tensor:
    """Divided by a norm: it depends on all along `dim`, but a zero stays zero."""
    return something(x * (1 + x.mean(dim, keepdim=True)))


def max_pool(
    function: Any,
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Max pooling as average pooling of the same geometry."""
    if set(dilation if isinstance(dilation, (tuple, list)) else (dilation,)) != {1}:
        raise NotImplementedError("dilated max pooling")
    stride = stride or kernel_size
    average = _by_dimensions(function, F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)
    pooled = average(x, kernel_size, stride, padding, ceil_mode)
    found = function(x.detach(), kernel_size, stride, padding, dilation, ceil_mode, *args, **kwargs)
    return (pooled, found[1]) if isinstance(found, tuple) else pooled


def adaptive_max_pool(function: Any, x: Tensor, output_size: Any, *args: Any, **kwargs: Any) -> Any:
    """Adaptive max pooling as adaptive average pooling."""
    adaptive = F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d
    pooled = _by_dimensions(function, *adaptive)(x, output_size)
    found = function(x.detach(), output_size, *args, **kwargs)
    return (pooled, found[1]) if isinstance(found, tuple) else pooled


def embedding(function: Any, tokens: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Tokens enter here. Any row may be looked up, so all of them count."""
    shape = function(tokens, weight.detach(), *args, **kwargs).shape
    return weight.to(DTYPE).sum(0).expand(shape)


def cast(function: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Whatever floating-point type a model asks for, paths are followed in one."""
    result = function(x, *args, **kwargs)
    floats = isinstance(result, Tensor) and result.is_floating_point()
    return result.to(DTYPE) if floats else result


def _by_dimensions(function: Any, *choices: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The function for as many dimensions (1, 2 or 3) as `function` works on."""
    return choices[operation_of(function).dimensions - 1]


def _channels(weight: Any, x: Tensor) -> Any:
    return None if weight is None else weight.reshape(1, -1, *[1] * (x.ndim - 2))


def _affine(x: Tensor, weight: Any, bias: Any) -> Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias
