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


DAY = 24 * 60 * 60  # seconds


def duration(seconds: float) -> str:
    """Hours, minutes and seconds as h:mm:ss or m:ss; beyond two days the nearest number of days."""
    if round(seconds) > 2 * DAY:
        return counted(round(seconds / DAY), "day")
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def counted(number: int, what: str) -> str:
    """So many of something: 1 run, 2 runs, 1,000 runs."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
