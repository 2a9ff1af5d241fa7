"""What the nodes of a traced graph were called with, by position or by name."""

from __future__ import annotations

from typing import Any

from torch import fx


def pool_settings(node: fx.Node, module: Any) -> tuple[Any, ...] | None:
    """Kernel, stride, padding, dilation and ceil_mode of a max pooling; None with indices."""
    names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
    if module is not None:
        return None if module.return_indices else tuple(getattr(module, name) for name in names)
    given = dict(zip(names, node.args[1:], strict=False)) | node.kwargs
    if given.pop("return_indices", False):
        return None
    defaults = {"stride": None, "padding": 0, "dilation": 1, "ceil_mode": False}
    settings = defaults | given
    return tuple(settings[name] or defaults.get(name) for name in names)


def flattens_rows(node: fx.Node, module: Any, rank: int = 0) -> bool:
    """Whether a flatten makes one row of each element of the batch; the rank may be unknown."""
    if module is not None:
        bounds = {"start_dim": module.start_dim, "end_dim": module.end_dim}
    else:
        names = ("start_dim", "end_dim")
        bounds = {"start_dim": 0, "end_dim": -1} | dict(
            zip(names, node.args[1:], strict=False), **node.kwargs
        )
    return bounds["start_dim"] == 1 and bounds["end_dim"] in (-1, rank - 1)


def averages_planes(node: fx.Node) -> bool:
    """Whether a mean is over height and width, [N, C, H, W] -> [N, C]."""
    dims = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    keeps = node.kwargs.get("keepdim") or len(node.args) > 2
    return not keeps and dims in ((2, 3), [2, 3], (-2, -1), [-2, -1])
