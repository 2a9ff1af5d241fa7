"""Values, messages and tables as people read them, on a terminal or in a notebook."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

LONGEST = 2000  # characters of a message: it may quote a file of megabytes
DAY = 24 * 60 * 60  # seconds

# Colours come from the page (currentColor, inherit); our own two, a blue and an orange that
# colour-blind people can tell apart, have enough contrast on white and on black.
STYLE = """
.snip-table { font-size: 13px; line-height: 1.45; color: inherit; }
.snip-table table { border-collapse: collapse; margin: 4px 0 8px; background: transparent; }
.snip-table th, .snip-table td { padding: 2px 10px; text-align: right; border: none;
  background: transparent; color: inherit; font-variant-numeric: tabular-nums; }
.snip-table th { font-weight: 600; border-bottom: 1px solid currentColor; }
.snip-table td:first-child, .snip-table th:first-child { text-align: left; padding-left: 0;
  font-family: ui-monospace, monospace; }
.snip-table tbody tr { border-bottom: 1px solid rgba(128, 128, 128, 0.25); }
.snip-table .bar { float: left; width: 80px; height: 8px; margin: 0.45em 12px 0 0;
  border-radius: 4px; background: rgba(128, 128, 128, 0.25); overflow: hidden; }
.snip-table td:has(.bar) { min-width: 165px; }
.snip-table .bar rect { fill: #3b8ed0; }
.snip-table .empty td { color: #d9701e; }
.snip-table .total td { font-weight: 600; }
.snip-table p { margin: 2px 0; }
.snip-table .warning { border-left: 3px solid #d9701e; padding-left: 8px; margin: 6px 0; }
.snip-table .note { opacity: 0.7; }
"""


def escaped(text: str, keep: str = "") -> str:
    """Text with control characters, except those in `keep`, spelled out as \\x1b."""
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text
    )


class _Short(reprlib.Repr):
    """Python's repr limited to a few items of a few levels, so that it is fast for any value.

    Containers that contain one another several times have a repr that never ends.
    """

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxdict = 3, 4
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = 6
        self.maxstring = self.maxother = 100

    def repr_int(self, x: int, _level: int) -> str:
        # Python refuses to write a number of thousands of digits.
        return repr(x) if abs(x) < 1 << 256 else f"a number of {x.bit_length()} bits"

    def repr_bytes(self, x: bytes, _level: int) -> str:
        return repr(x[:20]) + ("..." if len(x) > 20 else "")


_SHORT = _Short()


def shown(value: Any) -> str:
    """Shortened repr of a value, to quote it in a message."""
    return shortened(_SHORT.repr(value), 300)


def shortened(text: str, most: int = LONGEST) -> str:
    """Text cut after `most` characters."""
    return text if len(text) <= most else f"{text[:most]}..."


def listed(names: Sequence[object]) -> str:
    """The first five names, and how many more there are."""
    few = ", ".join(shown(name) for name in names[:5])
    return few + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def first_line(error: BaseException) -> str:
    """First line of an error's message; its type if there is no message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def unforeseen(error: BaseException) -> str:
    """Type and first line of an error that is not one of ours."""
    return f"{type(error).__name__}: {first_line(error)}"


def first_sentence(text: str) -> str:
    """First sentence of a message, for a table; files appear without their folders."""
    # The folders in "cannot read /home/me/runs/a.json (damaged): ..." name users and machines.
    plain = re.sub(r"(?:[A-Za-z]:)?(?:[\w.~-]*[/\\])+(?=[\w.-])", "", text.strip())
    lines = plain.splitlines() or [""]
    return re.split(r"(?<=[.!?])\s", lines[0], maxsplit=1)[0]


def percent(fraction: float) -> str:
    """Two decimals, and up to six where fewer would round to 0% or 100%: 99.996%."""
    for decimals in range(2, 7):
        text = f"{fraction:.{decimals}%}"
        if not 0 < fraction < 1 or float(text[:-1]) not in (0, 100):
            break
    return text


def short_percent(fraction: float) -> str:
    """`percent` without trailing zeros: 95%, 98.5%."""
    return percent(fraction).removesuffix("%").rstrip("0").removesuffix(".") + "%"


def duration(seconds: float) -> str:
    """Duration as h:mm:ss or m:ss; beyond two days the nearest number of days."""
    if round(seconds) > 2 * DAY:
        return counted(round(seconds / DAY), "day")
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def counted(number: int, noun: str) -> str:
    """A number and its noun: 1 run, 2 runs, 1,000 runs."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size(count: float) -> str:
    """A number of bytes in MB or kB."""
    return f"{count / 1e6:.2f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"


def html_page(content: str) -> str:
    """HTML for a notebook, with the style that it needs."""
    return f'<div class="snip-table"><style>{STYLE}</style>{content}</div>'


def html_table(
    cells: Mapping[str, Sequence[str]], *, bars: str, fractions: Sequence[float], kinds: list[str]
) -> str:
    """HTML table of title -> cells, with bars in the column `bars` and a CSS class per row."""
    head = "".join(f"<th>{escape(title)}</th>" for title in cells)
    rows = ""
    for line, fraction, kind in zip(
        zip(*cells.values(), strict=True), fractions, kinds, strict=True
    ):
        # A drawing and not a style attribute, which a strict Content-Security-Policy would block.
        bar = (
            '<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
            f'<rect width="{100 * fraction:.2f}" height="8"/></svg>'
        )
        row = "".join(
            f"<td>{bar if title == bars else ''}{escape(cell)}</td>"
            for title, cell in zip(cells, line, strict=True)
        )
        rows += f'<tr class="{kind}">{row}</tr>'
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
