"""Run any model's own forward on numbers that follow paths.

A mode and not a traced graph, because it must also follow forwards that torch.fx cannot trace.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from snip.network.operations import IN_PLACE
from snip.paths import layers
from snip.paths.table import rule_of
from snip.paths.values import ones


class PathProbe(TorchFunctionMode):
    """Inside this block every PyTorch function that has a rule follows it."""

    def __init__(self) -> None:
        super().__init__()
        self.sources: list[torch.Tensor] = []  # where the input comes in

    def enter(self, value: torch.Tensor) -> torch.Tensor:
        """`value` as a number that comes from the input; the paths found begin here."""
        source = ones(value.shape, value.device)
        self.sources.append(source)
        return source * value

    def made(self, value: Any) -> Any:
        """What a forward made by itself, not of numbers: a size, an index, a constant."""
        return value

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        rule, plain = rule_of(func), IN_PLACE.get(func)
        if rule is layers.cast:
            result = rule(func, *args, **kwargs)
            return self.enter(torch.ones_like(result)) if _is_data(args[0], result) else result
        if not _has_floats(args[:1] if plain else (*args, *kwargs.values())):
            return self.made(func(*args, **kwargs))
        if rule is None:
            return func(*args, **kwargs)
        if plain is not None:
            # The rule sees a copy: what autograd saved of it must not be written over.
            copied = args[0].clone()
            result = rule(plain, copied, *args[1:], **kwargs)
            return args[0] if result is copied else args[0].copy_(result)
        result = rule(func, *args, **kwargs)
        return self.enter(result) if rule is layers.embedding else result


def _is_data(given: torch.Tensor, result: Any) -> bool:
    """Whether a cast makes numbers of integers that are data: tables, not a size or an index."""
    if not isinstance(result, torch.Tensor) or not result.is_floating_point():
        return False
    return not given.is_floating_point() and given.dtype != torch.bool and given.ndim > 1


def _has_floats(values: tuple[Any, ...]) -> bool:
    """Whether there is a floating-point tensor among the arguments of a function.

    Shapes and indices are computed with integers, and must come out as they are.
    """
    return any(
        value.is_floating_point()
        if isinstance(value, torch.Tensor)
        else isinstance(value, (list, tuple)) and _has_floats(tuple(value))
        for value in values
    )
