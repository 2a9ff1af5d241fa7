"""Fills the places of a page that are marked for results, from the records alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import zip_longest
from pathlib import Path

from snip.common.errors import nearest
from snip.common.text import short_percent
from snip.experiments.fig1 import FIG1
from snip.experiments.gallery.verdicts import Judged, verdict_table
from snip.experiments.granularity import GRANULARITY
from snip.experiments.kinds import Record
from snip.experiments.methods import CONTROLLED, METHODS_EXPERIMENT, METHODS_HERE, SPARSITIES, TRAIN
from snip.experiments.records.captions import what_was_run
from snip.experiments.records.summary import LEGEND, shown
from snip.experiments.records.tables import markdown, table_of
from snip.experiments.table1 import SECONDS, TABLE1
from snip.methods.controls import CONTROLS

Records = Mapping[str, Record]
END = "<!-- end of results -->"
MARK = re.compile(rf"<!-- results: (\w+) -->(?:\n.*?{END})?", re.DOTALL)


def filled(text: str, records: Records, claims: Judged, results: Path) -> str:
    """A page with results between its marks; what stood there before is replaced."""
    parts = {**PARTS, "claims": lambda *_: verdict_table(claims, "gallery.md")}

    def fill(mark: re.Match[str]) -> str:
        name = mark[1]
        if name not in parts:
            raise nearest("mark for results", name, parts)
        return f"<!-- results: {name} -->\n{parts[name](records, results)}\n{END}"

    return MARK.sub(fill, text)


def _not_run(name: str, what: str) -> str:
    return f"{what} not run yet: `snip reproduce {name}`."


def _table(records: Records, _results: Path) -> str:
    """Errors of the methods at initialisation, and of those that the paper compares."""
    parts = []
    record = records.get(METHODS_EXPERIMENT.name)
    if record is None:
        name = METHODS_EXPERIMENT.name
        parts.append(_not_run(name, "The comparison of the methods at initialisation is"))
    else:
        parts += [_by_sparsity(record, model) for model in TRAIN]
        parts.append(f"Test error in %, selected on validation. {what_was_run(record)}")
    record = records.get(TABLE1.name)
    if record is None:
        parts.append(_not_run(TABLE1.name, "The paper's Table 1 is"))
    else:
        parts.append(_beside_the_paper(record))
        parts.append(
            f"`{record['command'].partition(' --')[0]}`: test error in %, selected on validation, "
            f"beside the paper's. {what_was_run(record)} {LEGEND}."
        )
    return "\n\n".join(parts)


def _cell(row: Record) -> str:
    """The error of a row, and how many of its seeds have none because they failed."""
    runs, failed = len(row["runs"]), row.get("failed", [])
    if not failed:
        return shown(row["selected"])
    how = "diverged" if all(one.get("diverged") for one in failed) else "failed"
    rest = f"{len(failed)} of {runs + len(failed)} {how}"
    return f"{shown(row['selected'])} ({rest})" if runs else rest


def _by_sparsity(record: Record, model: str) -> str:
    cells = {
        (row["label"], row["config"]["sparsity"]): _cell(row)
        for row in record["rows"]
        if row["config"]["model"] == model
    }
    heading = [model, *(f"{100 * sparsity:g}%" for sparsity in SPARSITIES)]
    rows = [[f"`{m}`", *(cells.get((m, s), "-") for s in SPARSITIES)] for m in METHODS_HERE]
    return markdown(heading, rows)


def _beside_the_paper(record: Record) -> str:
    heading, rows = table_of(TABLE1, record)
    names = (
        "", "network", "sparsity %", "of all %", "paper %", "selected %", "seeds",
        "kept by its own rule", "steps", SECONDS,
    )  # fmt: skip
    places = [heading.index(name) for name in names]
    return markdown(["method", *names[1:]], [[row[place] for place in places] for row in rows])


def _table1(records: Records, _results: Path) -> str:
    """Both networks side by side, our errors beside the paper's."""
    record = records.get(TABLE1.name)
    if record is None:
        return _not_run(TABLE1.name, "The paper's Table 1 is")
    columns, sides = [""], []
    for model in dict.fromkeys(row["config"]["model"] for row in record["rows"]):
        columns += [f"{model}: sparsity %", "error %", "the paper's", "seeds"]
        sides.append([_side(row) for row in record["rows"] if row["config"]["model"] == model])
    rows = []
    for pair in zip_longest(*sides, fillvalue=("-",) * 5):  # a method has a row of each network
        rows.append([pair[0][0], *(cell for side in pair for cell in side[1:])])
    return f"{markdown(columns, rows)}\n\n{LEGEND}."


def _side(row: Record) -> tuple[str, ...]:
    """A row's method, and its cells of one network."""
    sparsity = row["config"]["sparsity"]
    label, removed = (row["label"], f"{100 * sparsity:g}") if sparsity else ("dense", "-")
    return label, removed, _cell(row), row["paper"] or "-", str(len(row["runs"]))


def _fig1(records: Records, _results: Path) -> str:
    """Error over the sparsity, a line per network, seeds in brackets."""
    record = records.get(FIG1.name)
    if record is None:
        return _not_run(FIG1.name, "The paper's Figure 1 is")
    cells: dict[str, dict[float, str]] = {}
    for row in record["rows"]:
        error = f"{row['selected']['mean']:.2f}" if row["selected"] else "-"
        told = f"{error} ({len(row['runs'])})"
        cells.setdefault(row["config"]["model"], {})[row["config"]["sparsity"]] = told
    sparsities = sorted({sparsity for found in cells.values() for sparsity in found})
    heading = ["error % (seeds) at", *(short_percent(s) if s else "dense" for s in sparsities)]
    rows = [[model, *(found.get(s, "") for s in sparsities)] for model, found in cells.items()]
    return markdown(heading, rows)


def _figure(records: Records, results: Path) -> str:
    name = METHODS_EXPERIMENT.name
    if name not in records or not (results / f"{name}.png").is_file():
        return _not_run(name, "The figure of all methods is drawn by an experiment that is")
    place = f"../results/{name}"
    return f"[![{records[name]['title']}]({place}.png)]({place}.svg)"


def _granularity(records: Records, _results: Path) -> str:
    record = records.get(GRANULARITY.name)
    if record is None:
        return _not_run(GRANULARITY.name, "What each costs in error and buys in time is")
    said = f"`{record['command']}`. {what_was_run(record)}"
    return f"{markdown(*table_of(GRANULARITY, record))}\n\n{said}"


def _controls(records: Records, _results: Path) -> str:
    """Each method beside its controls, at the one place where these are run."""
    record = records.get(METHODS_EXPERIMENT.name)
    if record is None:
        return _not_run(METHODS_EXPERIMENT.name, "The controls are")
    model, sparsity = CONTROLLED
    cells = {
        row["label"]: _cell(row)
        for row in record["rows"]
        if (row["config"]["model"], row["config"]["sparsity"]) == CONTROLLED
    }
    rows = [
        [f"`{m}`", cells.get(m, "-"), *(cells.get(f"{m}, {c}", "-") for c in CONTROLS)]
        for m in METHODS_HERE
    ]
    table = markdown([f"{model} at {100 * sparsity:g}%", "the method", *CONTROLS], rows)
    return f"{table}\n\nTest error in %. {what_was_run(record)}"


PARTS: dict[str, Callable[[Records, Path], str]] = {
    "table": _table,
    "figure": _figure,
    "granularity": _granularity,
    "fig1": _fig1,
    "table1": _table1,
    "controls": _controls,
}
