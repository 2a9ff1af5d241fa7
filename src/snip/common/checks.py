"""Checks that several configurations share: a value in its limits, a field that exists."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from snip.common.errors import InputError, KindError, nearest


def check_fields(cls: type, data: Mapping[str, Any], kind: str) -> None:
    """Refuse names that are no fields of the dataclass `cls`."""
    known = {field.name for field in dataclasses.fields(cls)}
    for name in data:
        if name not in known:
            raise nearest(kind, name, known)


def differences(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """A sentence with the first four differences of two configurations; empty if there is none."""
    changed = [
        f"{key} {theirs.get(key, 'default')!r} there, {ours.get(key, 'default')!r} here"
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
) -> float:
    """`value` as a float. Raises if it is no number or lies outside the limits."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise KindError(f"{name} is {value!r}, a {type(value).__name__}: give a number.")
    low = f"at least {least:g}" if above is None else f"above {above:g}"
    inside = value >= least if above is None else value > above
    if not (inside and value < below):  # also refuses NaN
        high = "finite" if math.isinf(below) else f"below {below:g}"
        raise InputError(f"{name} is {value!r}: it must be {low} and {high}.")
    return float(value)


def checked_whole(name: str, value: Any, *, least: int) -> int:
    """`value`. Raises if it is no whole number or less than `least`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise KindError(f"{name} is {value!r}, a {type(value).__name__}: give a whole number.")
    if value < least:
        raise InputError(f"{name} is {value}: it must be at least {least}.")
    return value
