"""A report in a notebook."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from snip.common.text import html_page, html_table
from snip.reports.text import columns, summary

if TYPE_CHECKING:
    from snip.reports.report import Report


def as_html(report: Report) -> str:
    """A report with the style that it needs."""
    return html_page(content(report))


def content(report: Report) -> str:
    """The table with density bars, the totals, the warnings and what was left out."""
    densities = [*(row.density for row in report.rows), 1 - report.sparsity]
    kinds = ["empty" if row.units and not row.kept else "" for row in report.rows]
    rows = html_table(columns(report), bars="density", fractions=densities, kinds=[*kinds, "total"])
    lines = "".join(f"<p>{escape(line)}</p>" for line in summary(report))
    warnings = "".join(
        f'<p class="warning"><b>Warning:</b> {escape(warning)}</p>' for warning in report.warnings
    )
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in report.notes)
    return f"{rows}{lines}{warnings}{notes}{_left_out(report)}"


def _left_out(report: Report) -> str:
    if not report.left_out:
        return ""
    items = "".join(
        f"<li><code>{escape(name)}</code> ({report.left_out_sizes[name]:,}): {escape(reason)}</li>"
        for name, reason in report.left_out.items()
    )
    return f'<details class="note"><summary>What was left out</summary><ul>{items}</ul></details>'
