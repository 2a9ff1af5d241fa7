"""Checks of values and fields that several configurations share."""

from __future__ import annotations

import cmath
import dataclasses
import math
import sys
import types
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

from snip.common.errors import InputError, KindError, nearest
from snip.common.text import shortened, shown

if TYPE_CHECKING:  # torch takes long to import, and `snip --help` needs none of it
    import torch

LARGEST = 2.0**64  # numbers in a file (counts, seeds, seconds) are below


def check_fields(cls: type, data: Mapping[str, Any], kind: str) -> None:
    """Raise for a name that is no field of the dataclass `cls`."""
    known = {field.name for field in dataclasses.fields(cls)}
    for name in data:
        if name not in known:
            raise nearest(kind, name, known)


def check_kinds(value: Any, what: str) -> None:
    """Raise for a field of a dataclass instance whose value does not fit its type hint."""
    cls: type = type(value)
    for name, hint in _hints(cls).items():
        content = getattr(value, name)
        # A default, which is most fields' value, fits and is a class attribute.
        if content is not getattr(cls, name, _hints) and not fits(content, hint):
            plain = isinstance(hint, type) and not get_args(hint)
            wanted = hint.__name__ if plain else str(hint)
            raise KindError(f"{name} of {what} is {shown(content)}: it must be {wanted}.")


def fits(value: Any, hint: Any) -> bool:
    """Return True if a value has the type of a hint; numbers must also be finite."""
    if hint is Any:
        return True
    kind, parts = get_origin(hint), get_args(hint)
    if kind in (Union, types.UnionType):
        return any(fits(value, part) for part in parts)
    if kind is dict:
        return isinstance(value, dict) and all(
            fits(key, parts[0]) and fits(part, parts[1]) for key, part in value.items()
        )
    if kind in (tuple, list):
        return isinstance(value, kind) and all(fits(part, parts[0]) for part in value)
    if isinstance(value, bool):  # an int to Python
        return hint is bool
    if isinstance(value, (int, float)) and not abs(value) < LARGEST:  # also infinity and NaN
        return False
    return isinstance(value, (int, float) if hint is float else hint)


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def differences(
    theirs: Mapping[str, Any], ours: Mapping[str, Any], there: str = "there", here: str = "here"
) -> str:
    """Describe the first four differences of two configurations; empty if they are equal."""
    changed = [
        f"{shortened(str(key), 100)} {shown(theirs.get(key, 'default'))} {there}, "
        f"{shown(ours.get(key, 'default'))} {here}"
        for key in sorted({*theirs, *ours})
        if theirs.get(key) != ours.get(key)
    ]
    return "; ".join(changed[:4])


def checked_number(
    name: str,
    value: Any,
    *,
    above: float | None = None,
    least: float = 0.0,
    below: float = math.inf,
    most: float = math.inf,
) -> float:
    """Return `value` as a float; raise if it is no number or outside the limits."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise KindError(f"{name} is {shown(value)}, a {type(value).__name__}: give a number.")
    low = f"at least {least:g}" if above is None else f"above {above:g}"
    inside = value >= least if above is None else value > above
    # A whole number may be too large for a float. NaN is refused too.
    if not (inside and value < below and value <= min(most, sys.float_info.max)):
        high = "finite" if math.isinf(below) else f"below {below:g}"
        high = high if math.isinf(most) else f"at most {most:g}"
        raise InputError(f"{name} is {shown(value)}: it must be {low} and {high}.")
    return float(value)


def checked_whole(name: str, value: Any, *, least: int, most: int | None = None) -> int:
    """Return `value`; raise if it is no whole number or outside the limits."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise KindError(f"{name} is {shown(value)}, a {type(value).__name__}: give a whole number.")
    if value < least:
        raise InputError(f"{name} is {shown(value)}: it must be at least {least}.")
    if most is not None and value > most:
        raise InputError(f"{name} is {shown(value)}: it must be at most {most:,}.")
    return value


def all_finite(tensor: torch.Tensor) -> bool:
    """Return True if no element is NaN or infinite."""
    # The sum takes a tenth of the time and is not finite if an element is not. Every element needs
    # a look only where the sum is not finite, which may be an overflow.
    return cmath.isfinite(tensor.sum().item()) or bool(tensor.isfinite().all())
