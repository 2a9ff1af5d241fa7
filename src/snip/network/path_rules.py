"""Numbers that follow paths, and what functions of PyTorch make of them.

0 is "always zero", a small number "something", a huge one "depends on an input". A rule keeps what
matters of a function: which results may be nonzero, and on which arguments they depend. Numbers are
never negative, so that nothing cancels: x - y becomes x + y.

Run backward, the gradient of a mask is the sum of g x over its uses: huge exactly where an input
feeds a connection that reaches an output, and small where only a bias feeds it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from snip.network.operations import REVERSED, operation_of

Tensor = torch.Tensor

DTYPE = torch.float32  # sums of ones never round to zero
FOLLOWED = 2.0**62  # depends on an input; its square is still a float32
_FOLLOWED = torch.tensor(FOLLOWED, dtype=DTYPE)  # which makes a float32 of a bool beside it
HUGE = 2.0**40  # from here on a number depends on an input, also as one of a million in a mean
LARGEST_CONSTANT = 2.0**20


def _levels(x: Tensor) -> Tensor:
    """0, 1 or FOLLOWED for each number."""
    return torch.where(depends(x), _FOLLOWED, x != 0)


def require_finite(gradient: Tensor) -> None:
    """Raise for gradients with infinities or NaN."""
    # Our own gradients never overflow, so one of the model's functions has made this one.
    if not gradient.isfinite().all():
        raise ValueError("a function of the model has no finite derivative")


class _Signal(torch.autograd.Function):
    """Bring sums of products back to 0, 1 or FOLLOWED, and their gradients to 0 or 1."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _levels(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        # A weight that only scales a path further on, as a constant, is not on a path itself.
        require_finite(gradients[0])
        return (gradients[0] != 0).to(DTYPE)


class _Product(torch.autograd.Function):
    """x y as 0, 1 or FOLLOWED. Huge gradients stay huge: each factor lets the other's path pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        return _levels(x * y)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        require_finite(gradients[0])
        x, y = ctx.saved_tensors
        gradient = _levels(gradients[0])
        return tuple(  # type: ignore[return-value]
            _levels(gradient * other).sum_to_size(own.shape) for own, other in ((x, y), (y, x))
        )


def something(x: Tensor) -> Tensor:
    """Bring numbers back to 0, 1 or FOLLOWED, after anything that sums or multiplies."""
    result: Tensor = _Signal.apply(x)
    return result


def multiplied(x: Any, y: Any) -> Tensor:
    """Something where both factors are; depends on an input where one of them does."""
    result: Tensor = _Product.apply(_tensor(x, y), _tensor(y, x))
    return result


def depends(x: Tensor) -> Tensor:
    """True where a number depends on an input."""
    return x >= HUGE


def limited(x: Tensor) -> Tensor:
    """A constant as a number that depends on no input: finite, not negative and nowhere huge."""
    if not x.is_floating_point():
        return x
    return torch.where(x.isfinite(), x.abs().clamp_max(LARGEST_CONSTANT), 0.0)


def number(x: Any) -> Any:
    """An argument of a function as a path number."""
    if isinstance(x, Tensor):
        return x.to(DTYPE) if x.is_floating_point() else x
    if isinstance(x, (int, float)) and not isinstance(x, bool):
        return min(abs(x), LARGEST_CONSTANT) if abs(x) != float("inf") else 0
    return x


def pointwise(function: Any, *args: Any, **kwargs: Any) -> Tensor:
    """A function of each number by itself. Dropout, rounding and detaching do not cut a path."""
    rule = same if operation_of(function).zero_stays else never_zero
    return rule(function, *args, **kwargs)


def same(function: Any, *args: Any, **kwargs: Any) -> Tensor:
    """Zero where the argument is zero."""
    return _first(args, kwargs)


def never_zero(function: Any, *args: Any, **kwargs: Any) -> Tensor:
    """The result is something even where the argument is zero."""
    return _first(args, kwargs) + 1


def softmax(function: Any, *args: Any, **kwargs: Any) -> Tensor:
    """Every result is something, and depends on all arguments of its row."""
    x = _first(args, kwargs)
    second_is_dim = len(args) > 1 and function is not F.gumbel_softmax
    dim = kwargs.get("dim", args[1] if second_is_dim else -1)
    return x + x.mean(-1 if dim is None else dim, keepdim=True) + 1


def linear_map(function: Any, *args: Any, **kwargs: Any) -> Any:
    """The function itself on numbers that do not cancel."""
    result = function(*map(numbers, args), **{k: numbers(v) for k, v in kwargs.items()})
    return something(result) if result.is_floating_point() else result


def product(function: Any, x: Any, y: Any, **kwargs: Any) -> Tensor:
    """x * y, number by number."""
    return multiplied(x, y)


def plus(function: Any, x: Any, y: Any, **kwargs: Any) -> Tensor:
    """x + y, also for x - y, max(x, y) and min(x, y): each depends on both."""
    return torch.add(_tensor(x, y), _tensor(y, x), alpha=abs(kwargs.get("alpha", 1)))


def quotient(function: Any, x: Any, y: Any, **kwargs: Any) -> Any:
    """x / y depends on y only where x is something; y itself is taken not to be zero."""
    x, y = (y, x) if function in REVERSED else (x, y)
    x = _tensor(x, y)
    return multiplied(x, 1 + number(y)) if isinstance(y, Tensor) else x


def power(function: Any, x: Any, y: Any, **kwargs: Any) -> Any:
    """x ** y is something wherever y may be zero, and depends on both."""
    x, y = (y, x) if function in REVERSED else (x, y)
    if not isinstance(x, Tensor):
        return y + 1
    if isinstance(y, Tensor):
        return number(x) + number(y) + 1
    return x if y > 0 else x + 1


_REDUCED = {  # the arguments after the first
    "norm": "p dim keepdim",
    "vector_norm": "ord dim keepdim",
    **dict.fromkeys(("std", "var", "std_mean", "var_mean"), "dim unbiased keepdim"),
}


def reduced(function: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Norms, extremes and deviations depend on all they see."""
    name = operation_of(function).name
    named = dict(zip(_REDUCED.get(name, "dim keepdim").split(), args, strict=False)) | kwargs
    dim = named.get("dim")
    other = named.get("other", dim)
    if isinstance(other, Tensor):  # max(x, y)
        return plus(function, x, other)
    whole = dim is None or isinstance(dim, bool)  # std(x, unbiased)
    dims = tuple(range(x.ndim)) if whole else dim
    result = x.mean(dims, keepdim=named.get("keepdim", False))
    if name.endswith("_mean"):
        return result, result
    if name in ("max", "min") and not whole:
        real = function(x, *args, **kwargs)
        return type(real)((result, real.indices))
    return result


def where(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Count both sides, because the data decides which is taken."""
    if len(args) + len(kwargs) < 3:
        return function(*args, **kwargs)
    condition, x, y = (*args, *kwargs.values())
    if isinstance(x, Tensor) and not x.is_floating_point():
        return function(condition, x, y)
    return number(x) + number(y) + torch.zeros_like(condition, dtype=DTYPE)


def masked_fill(function: Any, x: Tensor, mask: Tensor, value: Any) -> Tensor:
    """Zero where minus infinity is filled in, as before a softmax: it contributes nothing."""
    value = float(value)
    return function(x, mask, number(value) if value >= 0 else 0.0)


def glu(function: Any, x: Tensor, dim: int = -1) -> Tensor:
    """a * sigmoid(b): the gate is never zero, and the result depends on it."""
    a, b = x.chunk(2, dim)
    return multiplied(a, 1 + b)


def cosine_similarity(function: Any, x: Tensor, y: Tensor, dim: int = 1, eps: float = 0) -> Tensor:
    """A sum of products."""
    return multiplied(x, y).mean(dim)


def pairwise_distance(function: Any, x: Tensor, y: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """A sum over differences."""
    return (number(x) + number(y)).mean(-1, keepdim=kwargs.get("keepdim", False))


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
    return something(_affine(multiplied(x, 1 + x.mean(dims, keepdim=True)), weight, None))


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
    return something(_affine(number(x), _channels(weight, x), _channels(bias, x)))


def weight_norm(function: Any, direction: Tensor, length: Tensor, dim: int = 0) -> Tensor:
    """A parametrised weight: its direction times its length."""
    return multiplied(direction, length)


def normalize(function: Any, x: Tensor, p: float = 2.0, dim: Any = 1, **kwargs: Any) -> Tensor:
    """Divided by a norm: it depends on all along `dim`, but a zero stays zero."""
    return something(multiplied(x, 1 + x.mean(dim, keepdim=True)))


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
    real = function(x.detach(), kernel_size, stride, padding, dilation, ceil_mode, *args, **kwargs)
    return (pooled, real[1]) if isinstance(real, tuple) else pooled


def adaptive_max_pool(function: Any, x: Tensor, output_size: Any, *args: Any, **kwargs: Any) -> Any:
    """Adaptive max pooling as adaptive average pooling."""
    adaptive = F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d
    pooled = _by_dimensions(function, *adaptive)(x, output_size)
    real = function(x.detach(), output_size, *args, **kwargs)
    return (pooled, real[1]) if isinstance(real, tuple) else pooled


def embedding(function: Any, tokens: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Tokens enter here. Any row may be looked up, so all of them count."""
    shape = function(tokens, weight.detach(), *args, **kwargs).shape
    return weight.to(DTYPE).sum(0).expand(shape)


def cast(function: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Whatever floating-point type a model asks for, paths are followed in one."""
    result = function(x, *args, **kwargs)
    floats = isinstance(result, Tensor) and result.is_floating_point()
    return result.to(DTYPE) if floats else result


def _first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0] if args else kwargs["input"]


def numbers(x: Any) -> Any:
    if isinstance(x, (list, tuple)) and any(isinstance(part, Tensor) for part in x):
        return type(x)(number(part) for part in x)
    # Numbers here are strides, paddings and the like.
    return number(x) if isinstance(x, Tensor) else x


def _tensor(x: Any, beside: Any) -> Tensor:
    x = number(x)
    if not isinstance(x, Tensor):
        return torch.full((), x, dtype=DTYPE, device=beside.device)
    return x if x.is_floating_point() else x.to(DTYPE).abs()


def _by_dimensions(function: Any, *choices: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The function for as many dimensions (1, 2 or 3) as `function` works on."""
    return choices[operation_of(function).dimensions - 1]


def _channels(weight: Any, x: Tensor) -> Any:
    return None if weight is None else weight.reshape(1, -1, *[1] * (x.ndim - 2))


def _affine(x: Tensor, weight: Any, bias: Any) -> Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias
