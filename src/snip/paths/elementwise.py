"""Rules of arithmetic, activations and reductions, on numbers that follow paths."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from snip.network.operations import REVERSED, operation_of
from snip.paths.values import DTYPE, constant, something

Tensor = torch.Tensor


def pointwise(function: Any, *args: Any, **kwargs: Any) -> Tensor:
    """A function of each number by itself. Dropout, rounding and detaching do not cut a path."""
    rule = same if operation_of(function).zero_stays else never_zero
    return rule(function, *args, **kwargs)


def same(function: Any, *args: Any, **kwargs: Any) -> Tensor:
    """Where the argument is zero, the result is zero."""
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


def product(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Linear maps: the function itself on non-negative numbers, brought back to 0 and 1."""
    result = function(*map(_constants, args), **{k: _constants(v) for k, v in kwargs.items()})
    return something(result) if result.is_floating_point() else result


def elementwise_product(function: Any, x: Any, y: Any, **kwargs: Any) -> Any:
    """Something where both factors are."""
    result = function(constant(x), constant(y))
    # Without gradients, products of several huge numbers would become infinite.
    return result if torch.is_grad_enabled() else something(result)


def plus(function: Any, x: Any, y: Any, **kwargs: Any) -> Any:
    """x + y, also for x - y, max(x, y) and min(x, y): each depends on both."""
    return torch.add(_tensor(x, y), _tensor(y, x), alpha=abs(kwargs.get("alpha", 1)))


def quotient(function: Any, x: Any, y: Any, **kwargs: Any) -> Any:
    """x / y depends on y only where x is something; y itself is taken not to be zero."""
    x, y = (y, x) if function in REVERSED else (x, y)
    x = _tensor(x, y)
    return x * (1 + constant(y)) if isinstance(y, Tensor) else x


def power(function: Any, x: Any, y: Any, **kwargs: Any) -> Any:
    """x ** y is something wherever y may be zero, and depends on both."""
    x, y = (y, x) if function in REVERSED else (x, y)
    if not isinstance(x, Tensor):
        return y + 1
    if isinstance(y, Tensor):
        return constant(x) + constant(y) + 1
    return x if y > 0 else x + 1


def largest(function: Any, x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    """amax, amin, logsumexp and the norms depend on all they see."""
    return x.mean(tuple(range(x.ndim)) if dim is None else dim, keepdim=keepdim)


def deviation(
    function: Any, x: Tensor, dim: Any = None, *args: Any, keepdim: bool = False, **kwargs: Any
) -> Tensor:
    """std and var: (x, unbiased) or (x, dim, unbiased, keepdim)."""
    dim = None if isinstance(dim, bool) else dim
    return largest(function, x, dim, args[1] if len(args) > 1 else keepdim)


def deviation_and_mean(function: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """Both depend on all that is seen."""
    result = deviation(function, *args, **kwargs)
    return result, result


def norm(
    function: Any, x: Tensor, p: Any = 2, dim: Any = None, keepdim: bool = False, **kwargs: Any
) -> Tensor:
    """A norm depends on all it sees; which norm it is does not matter."""
    return largest(function, x, dim, keepdim)


def extremum(function: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    """max and min: of all, along a dimension, or of two tensors."""
    other = kwargs.get("other", args[0] if args else None)
    if isinstance(other, Tensor):
        return plus(function, x, other)
    if other is None and "dim" not in kwargs:
        return x.mean()
    found = function(x, *args, **kwargs)
    dim = kwargs.get("dim", other)
    keep = kwargs.get("keepdim", args[1] if len(args) > 1 else False)
    return type(found)((x.mean(dim, keepdim=keep), found.indices))


def where(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Which side is taken depends on the data, so both count."""
    if len(args) + len(kwargs) < 3:
        return function(*args, **kwargs)
    condition, x, y = (*args, *kwargs.values())
    if isinstance(x, Tensor) and not x.is_floating_point():
        return function(condition, x, y)
    return constant(x) + constant(y) + torch.zeros_like(condition, dtype=DTYPE)


def masked_fill(function: Any, x: Tensor, mask: Tensor, value: Any) -> Tensor:
    """What is filled with minus infinity, as before a softmax, contributes nothing: a zero."""
    value = float(value)
    return function(x, mask, value if 0 <= value < float("inf") else 0.0)


def glu(function: Any, x: Tensor, dim: int = -1) -> Tensor:
    """a * sigmoid(b): the gate is never zero, and the result depends on it."""
    a, b = x.chunk(2, dim)
    return a * (1 + b)


def cosine_similarity(function: Any, x: Tensor, y: Tensor, dim: int = 1, eps: float = 0) -> Tensor:
    """A sum of products."""
    return (constant(x) * constant(y)).mean(dim)


def pairwise_distance(function: Any, x: Tensor, y: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """A sum over differences."""
    return (constant(x) + constant(y)).mean(-1, keepdim=kwargs.get("keepdim", False))


def _first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0] if args else kwargs["input"]


def _constants(x: Any) -> Any:
    if isinstance(x, (list, tuple)) and any(isinstance(part, Tensor) for part in x):
        return type(x)(constant(part) for part in x)
    # Numbers here are strides, paddings and the like.
    return constant(x) if isinstance(x, Tensor) else x


def _tensor(x: Any, beside: Any) -> Any:
    x = constant(x)
    return x if isinstance(x, Tensor) else torch.full((), x, dtype=DTYPE, device=beside.device)
