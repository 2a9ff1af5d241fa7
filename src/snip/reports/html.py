"""A report in a notebook: one self-contained piece of HTML that suits light and dark themes."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from snip.reports.text import columns, summary

if TYPE_CHECKING:
    from snip.reports.report import Report

# Colours come from the page (currentColor, inherit); the two of our own, a blue and an orange
# that colour-blind people tell apart, have enough contrast on white and on black.
STYLE = """
.snip-report { font-size: 13px; line-height: 1.45; color: inherit; }
.snip-report table { border-collapse: collapse; margin: 4px 0 8px; background: transparent; }
.snip-report th, .snip-report td { padding: 2px 10px; text-align: right; border: none;
  background: transparent; color: inherit; font-variant-numeric: tabular-nums; }
.snip-report th { font-weight: 600; border-bottom: 1px solid currentColor; }
.snip-report td:first-child, .snip-report th:first-child { text-align: left; padding-left: 0;
  font-family: ui-monospace, monospace; }
.snip-report tbody tr { border-bottom: 1px solid rgba(128, 128, 128, 0.25); }
.snip-report .bar { display: inline-block; width: 80px; height: 8px; margin-right: 8px;
  border-radius: 4px; background: rgba(128, 128, 128, 0.25); vertical-align: middle;
  overflow: hidden; }
.snip-report .bar i { display: block; height: 100%; min-width: 1px; background: #3b8ed0; }
.snip-report .empty td { color: #d9701e; }
.snip-report .total td { font-weight: 600; }
.snip-report p { margin: 2px 0; }
.snip-report .warning { border-left: 3px solid #d9701e; padding-left: 8px; margin: 6px 0; }
.snip-report .note { opacity: 0.7; }
"""


def as_html(report: Report) -> str:
    """The table with density bars, the totals, the warnings and what was left out."""
    cells = columns(report)
    head = "".join(f"<th>{title}</th>" for title in cells)
    densities = [*(row.density for row in report.rows), 1 - report.sparsity]
    kinds = ["empty" if row.units and not row.kept else "" for row in report.rows]
    rows = "".join(
        _row(dict(zip(cells, line, strict=True)), density, kind)
        for line, density, kind in zip(
            zip(*cells.values(), strict=True), densities, [*kinds, "total"], strict=True
        )
    )
    lines = "".join(f"<p>{escape(line)}</p>" for line in summary(report))
    warnings = "".join(
        f'<p class="warning"><b>Warning:</b> {escape(warning)}</p>' for warning in report.warnings
    )
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in report.notes)
    return (
        f'<div class="snip-report"><style>{STYLE}</style>'
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        f"{lines}{warnings}{notes}{_left_out(report)}</div>"
    )


def _row(cells: dict[str, str], density: float, kind: str) -> str:
    bar = f'<span class="bar"><i style="width:{100 * density:.2f}%"></i></span>'
    shown = "".join(
        f"<td>{bar if title == 'density' else ''}{escape(cell)}</td>"
        for title, cell in cells.items()
    )
    return f'<tr class="{kind}">{shown}</tr>'


def _left_out(report: Report) -> str:
    if not report.left_out:
        return ""
    items = "".join(
        f"<li><code>{escape(name)}</code>: {escape(reason)}</li>"
        for name, reason in report.left_out.items()
    )
    return f'<details class="note"><summary>What was left out</summary><ul>{items}</ul></details>'
