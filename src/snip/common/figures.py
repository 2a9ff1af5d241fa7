"""Figures as people read them."""

from __future__ import annotations


def percent(fraction: float) -> str:
    """Two decimals, and more where 100 or 0 would be a lie: 99.996%."""
    decimals = 2
    while (
        decimals < 6
        and 0 < fraction < 1
        and f"{fraction:.{decimals}%}"
        in (
            f"{0:.{decimals}%}",
            f"{1:.{decimals}%}",
        )
    ):
        decimals += 1
    return f"{fraction:.{decimals}%}"


def short_percent(fraction: float) -> str:
    """As `percent`, without zeros that say nothing: 95%, 98.5%."""
    return percent(fraction).removesuffix("%").rstrip("0").removesuffix(".") + "%"
