"""A report printed as a table, and as HTML in a notebook or on the page."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from snip.common.text import escaped, html_page, html_table, percent
from snip.network.layout import is_weight

if TYPE_CHECKING:
    from snip.reports.report import Report, Row


UNKNOWN = "-"
WIDEST = 120  # wider would only tear the rows apart
# What goes where there is no room, in this order.
DROPPED = ("shape", "dense FLOPs", "total", "FLOPs", "dead units")


def as_text(report: Report, *, width: int | None = None) -> str:
    """Plain text, without colour, fitted to the terminal (or to 100 columns if there is none)."""
    width = width or min(shutil.get_terminal_size((100, 24)).columns, WIDEST)
    file = io.StringIO()
    console = Console(file=file, width=width, color_system=None, legacy_windows=False)
    console.print(report)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def as_rich(report: Report, console: Console, options: ConsoleOptions) -> Iterator[Any]:
    """Renderables for rich."""
    yield _fitting_table(report, console, options)
    yield Text()
    yield from (_plain(line) for line in summary(report))
    yield from (_plain(f"Warning: {warning}", "bold yellow") for warning in report.warnings)
    yield from (_plain(note, "dim") for note in report.notes)


def summary(report: Report) -> list[str]:
    """The totals in words."""
    lines = [_headline(report)]
    if report.effective_kept is not None and report.effective_sparsity is not None:
        lines.append(
            f"Effective sparsity {percent(report.effective_sparsity)}: "
            f"{_paths(report.kept - report.effective_kept)} from input to output."
        )
    if report.flops_before is not None and report.flops_after is not None:
        lines.append(
            f"FLOPs per sample {short(report.flops_before)} dense, {short(report.flops_after)} "
            f"kept ({percent(report.flops_ratio or 0.0)}): multiplications and additions with "
            "weights, not time."
        )
    lines += [report.granularity_note] if report.granularity_note else []
    lines += _biases(report)
    if report.left_out:
        lines.append(f"Left out: {left_out_summary(report)}.")
    return lines


def _biases(report: Report) -> list[str]:
    """Describe the biases that were up for pruning."""
    biases = [row for row in report.rows if not is_weight(row.shape)]
    if not biases:
        return []
    kept, total = sum(row.kept for row in biases), sum(row.total for row in biases)
    line = f"Biases: {kept:,} of {total:,} kept."
    if report.zero_biases and kept < total:
        line += f" One that starts at zero has no sensitivity, as {report.zero_biases:,} did:"
    if kept < total and (report.zero_biases or not kept):
        line += " biases='keep' leaves them all."
    return [line]


def left_out_summary(report: Report) -> str:
    """Reasons with how many parameters of the model each takes out, the most first."""
    groups: dict[str, list[int]] = {}
    for name, reason in report.left_out.items():
        groups.setdefault(reason, []).append(report.left_out_sizes[name])
    return "; ".join(
        f"{reason} ({sum(sizes):,} in {len(sizes):,} tensor{'s' * (len(sizes) > 1)}, "
        f"{percent(sum(sizes) / max(1, report.parameters))} of the model)"
        for reason, sizes in sorted(groups.items(), key=lambda group: -sum(group[1]))
    )


def as_line(report: Report) -> str:
    """The report in a line or two, for a prompt."""
    parts = [f"{percent(report.sparsity)} sparse, {report.kept:,} of {report.total:,} kept"]
    if _differs(report):
        parts.append(f"{percent(report.model_sparsity)} of the whole model")
    if report.flops_ratio is not None:
        parts.append(f"{percent(report.flops_ratio)} of the FLOPs")
    if report.warnings:
        parts.append(f"{len(report.warnings)} warning{'s' * (len(report.warnings) > 1)}")
    return f"Report({report.model}: {'; '.join(parts)})"


def _headline(report: Report) -> str:
    """The sparsity of what was up for pruning, and of the whole model where that is another."""
    kept = f"{report.kept:,} of {report.total:,} kept"
    if not _differs(report):
        return f"Sparsity {percent(report.sparsity)}: {kept}."
    return (
        f"Sparsity {percent(report.sparsity)} of the prunable weights: {kept}; "
        f"{percent(report.model_sparsity)} of the whole model: {report.parameters_left:,} of "
        f"{report.parameters:,} parameters left."
    )


def _differs(report: Report) -> bool:
    return percent(report.sparsity) != percent(report.model_sparsity)


def short(number: float | None) -> str:
    """Three digits and a letter: 532k, 1.2M."""
    if number is None:
        return UNKNOWN
    for limit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:.3g}{letter}"
    return f"{number:.3g}"


def count(number: int | None) -> str:
    """Thousands apart, a dash if unknown."""
    return UNKNOWN if number is None else f"{number:,}"


def dead(row: Row) -> str:
    """Dead of all units."""
    return UNKNOWN if row.units is None else f"{count(row.dead_units)}/{row.units:,}"


def columns(report: Report) -> dict[str, list[str]]:
    """Title -> cells, with the totals as the last row."""
    rows = report.rows
    parts: list[Row | Report] = [*rows, report]
    return {
        "parameter": [*(row.name for row in rows), "total"],
        "shape": [*("x".join(map(str, row.shape)) or "scalar" for row in rows), ""],
        "kept": [count(part.kept) for part in parts],
        "total": [count(part.total) for part in parts],
        "density": [*(percent(row.density) for row in rows), percent(1 - report.sparsity)],
        "FLOPs": [short(part.flops_after) for part in parts],
        "dense FLOPs": [short(part.flops_before) for part in parts],
        "dead units": [*map(dead, rows), _dead_in_all(report)],
        "unconnected": [*(count(row.unconnected) for row in rows), _unconnected_in_all(report)],
    }


def _paths(lost: int) -> str:
    if not lost:
        return "every kept connection lies on a path"
    return f"{lost:,} kept connection{'s are' if lost > 1 else ' is'} on no path"


def _dead_in_all(report: Report) -> str:
    counted = [row for row in report.rows if row.units is not None]
    if not counted:
        return UNKNOWN
    return f"{sum(r.dead_units or 0 for r in counted):,}/{sum(r.units or 0 for r in counted):,}"


def _unconnected_in_all(report: Report) -> str:
    kept = report.effective_kept
    return count(None if kept is None else report.kept - kept)


def _fitting_table(report: Report, console: Console, options: ConsoleOptions) -> Table:
    cells = columns(report)
    table = _table(report, cells)
    for title in DROPPED:
        if Measurement.get(console, options.update(width=1000), table).maximum <= options.max_width:
            break
        del cells[title]
        table = _table(report, cells)
    return table


def _table(report: Report, cells: dict[str, list[str]]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in cells:
        left = title in ("parameter", "shape")
        table.add_column(
            title,
            justify="left" if left else "right",
            no_wrap=title != "parameter",
            overflow="fold",
        )
    styles = ["red" if not row.kept and row.units else "" for row in report.rows]
    for line, style in zip(zip(*cells.values(), strict=True), [*styles, "bold"], strict=True):
        table.add_row(*map(_plain, line), style=style)
    return table


def _plain(text: str, style: str = "") -> Text:
    """Text as it is: a name like "[red]" is no markup, and control characters are only shown."""
    return Text(escaped(text), style=style)


def as_html(report: Report) -> str:
    """A report with the style that it needs."""
    return html_page(html_content(report))


def html_content(report: Report) -> str:
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
