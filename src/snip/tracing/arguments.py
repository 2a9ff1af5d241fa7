"""What the nodes of a traced graph were called with, by position or by name."""

from __future__ import annotations

import inspect
import operator
from typing import Any

from torch import fx

IN_PLACE_SIGNS = (operator.iadd, operator.isub, operator.imul, operator.itruediv)


def given(node: fx.Node, index: int, name: str, default: Any = None) -> Any:
    """An argument as it stands in the graph: a number, a node, or a structure of these."""
    return node.args[index] if len(node.args) > index else node.kwargs.get(name, default)


def setting(node: fx.Node, module: Any, index: int, name: str, default: Any = None) -> Any:
    """A setting of a layer, which is its attribute, or of a function, which is an argument."""
    if module is not None:
        return getattr(module, name, default)
    return given(node, index, name, default)


def dimensions(node: fx.Node) -> tuple[int, ...] | None:
    """The `dim` of mean(x, dim), sum, squeeze ...; None where it is not written out."""
    dims = given(node, 1, "dim")
    dims = (dims,) if isinstance(dims, int) else tuple(dims or ())
    return dims if dims and all(isinstance(dim, int) for dim in dims) else None


def flatten_bounds(node: fx.Node, module: Any) -> tuple[int, int]:
    """The first and the last of the dimensions that a flatten makes one."""
    start = setting(node, module, 1, "start_dim", 0)
    return start, setting(node, module, 2, "end_dim", -1)


def flattens_rows(node: fx.Node, module: Any, rank: int = 0) -> bool:
    """Whether a flatten makes one row of each element of the batch; the rank may be unknown."""
    start, end = flatten_bounds(node, module)
    return start == 1 and end in (-1, rank - 1)


def averages_planes(node: fx.Node) -> bool:
    """Whether a mean is over height and width, [N, C, H, W] -> [N, C]."""
    plain = not given(node, 2, "keepdim") and "dtype" not in node.kwargs
    return plain and dimensions(node) in ((2, 3), (-2, -1))


def pool_settings(node: fx.Node, module: Any) -> tuple[Any, ...] | None:
    """Kernel, stride, padding, dilation and ceil_mode of a max pooling; None with indices."""
    if setting(node, module, 6, "return_indices", False):
        return None
    kernel = setting(node, module, 1, "kernel_size")
    stride = setting(node, module, 2, "stride") or None
    padding = setting(node, module, 3, "padding", 0)
    return (
        *(kernel, stride, padding, setting(node, module, 4, "dilation", 1)),
        setting(node, module, 5, "ceil_mode", False),
    )


def writes_in_place(node: fx.Node, module: Any) -> bool:
    """Whether a node overwrites its first argument."""
    if not node.op.startswith("call_"):
        return False
    if module is not None:
        return bool(getattr(module, "inplace", False))
    if node.target in IN_PLACE_SIGNS:
        return True
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if name.endswith("_") and not name.endswith("__"):
        return True
    return bool(given(node, _index(node.target, "inplace"), "inplace", False))


def _index(function: Any, name: str) -> int:
    """Where an argument stands among those of a function; far beyond the last if it has none."""
    try:
        return list(inspect.signature(function).parameters).index(name)
    except (TypeError, ValueError):  # a method's name, a function written in C, another signature
        return 1_000
