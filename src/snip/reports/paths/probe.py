"""Run any model's own forward on numbers that follow paths."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from snip.reports.paths import elementwise, layers
from snip.reports.paths.table import IN_PLACE, RULES
from snip.reports.paths.values import ones


class PathProbe(TorchFunctionMode):
    """Inside this block every PyTorch function that has a rule follows it."""

    def __init__(self) -> None:
        super().__init__()
        self.sources: list[torch.Tensor] = []  # where the input comes in

    def enter(self, value: torch.Tensor) -> torch.Tensor:
        """`value`, as something that depends on the input."""
        source = ones(value.shape, value.device)
        self.sources.append(source)
        return source * value

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        rule = RULES.get(func)
        if rule is layers.cast:
            return self._cast(func(*args, **kwargs), args[0])
        if rule is not None and _has_floats((*args, *kwargs.values())):
            result = rule(func, *args, **kwargs)
            return self.enter(result) if rule is layers.embedding else result
        if func in IN_PLACE and _has_floats(args[:1]):
            plain, rule = IN_PLACE[func]
            if rule is elementwise.through:
                return args[0]
            # The rule sees a copy: what autograd saved of it must not be written over.
            return args[0].copy_(rule(plain, args[0].clone(), *args[1:], **kwargs))
        return func(*args, **kwargs)

    def _cast(self, result: Any, given: Any) -> Any:
        """Floats keep one type; integers of two dimensions or more are data coming in."""
        if not isinstance(result, torch.Tensor) or not result.is_floating_point():
            return result
        if not given.is_floating_point() and given.dtype != torch.bool and given.ndim > 1:
            return self.enter(torch.ones_like(result))
        return layers.cast(result)


def _has_floats(values: tuple[Any, ...]) -> bool:
    # Shapes and indices are computed with integers and must come out true.
    return any(
        value.is_floating_point()
        if isinstance(value, torch.Tensor)
        else isinstance(value, (list, tuple)) and _has_floats(tuple(value))
        for value in values
    )
