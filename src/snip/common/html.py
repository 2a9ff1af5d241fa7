"""Tables in a notebook: self-contained HTML that suits light and dark themes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

# Colours come from the page (currentColor, inherit); the two of our own, a blue and an orange
# that colour-blind people tell apart, have enough contrast on white and on black.
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


def page(content: str) -> str:
    """A piece of HTML with the style that it needs."""
    return f'<div class="snip-table"><style>{STYLE}</style>{content}</div>'


def table(
    cells: Mapping[str, Sequence[str]], *, bars: str, fractions: Sequence[float], kinds: list[str]
) -> str:
    """A table of title -> cells with bars in the column `bars`; a row's kind is how it looks."""
    head = "".join(f"<th>{escape(title)}</th>" for title in cells)
    lines = zip(zip(*cells.values(), strict=True), fractions, kinds, strict=True)
    rows = "".join(
        _row(dict(zip(cells, line, strict=True)), bars, fraction, kind)
        for line, fraction, kind in lines
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _row(cells: Mapping[str, str], bars: str, fraction: float, kind: str) -> str:
    # A drawing and no style attribute: a page with a strict Content-Security-Policy shows it too.
    bar = (
        '<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect width="{100 * fraction:.2f}" height="8"/></svg>'
    )
    shown = "".join(
        f"<td>{bar if title == bars else ''}{escape(cell)}</td>" for title, cell in cells.items()
    )
    return f'<tr class="{kind}">{shown}</tr>'
