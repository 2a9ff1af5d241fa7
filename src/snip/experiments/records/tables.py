"""Tables of an experiment: in the terminal, as Markdown and as CSV, from its record alone."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path

from snip.common.console import say, show_table
from snip.common.files import write_text
from snip.common.text import listed, short_percent
from snip.experiments.kinds import Experiment, Record
from snip.experiments.records.captions import captions, command_of
from snip.experiments.records.parts import MEASURED
from snip.experiments.records.summary import shown
from snip.models import MODELS

Table = tuple[list[str], list[list[str]]]
CSV_FIELDS = ("label", "model", "dataset", "method", "sparsity", "paper", "paper_std", "asked")
CSV_NUMBERS = ("mean", "std", "against")  # under each rule; against: how it stands to the paper


def table_of(experiment: Experiment, record: Record, *, reasons: bool = True) -> Table:
    """Heading and rows: ours beside the paper's.

    A row that was not run yet is left out, unless there is a reason: a run failed, or its data is
    not here. The reasons are the last column, unless somebody says them elsewhere.
    """
    paper = any(row["paper"] for row in record["rows"])
    told = reasons and any(why_missing(row) for row in record["rows"])
    heading = ["", "network", "sparsity %", *(["paper %"] if paper else [])]
    heading += ["selected %", "best %", "seeds", *(name for name, _ in experiment.columns)]
    heading += ["missing"] if told else []
    rows = []
    for row in _told_rows(record):
        config = row["config"]
        cells = [row["label"], config["model"], short_percent(config["sparsity"]).removesuffix("%")]
        cells += [_paper(row)] if paper else []
        cells += [shown(row["selected"]), shown(row["best"]), _seeds(row)]
        cells += _more_cells(experiment, row, record)
        rows.append(cells + ([why_missing(row)] if told else []))
    return heading, rows


def _of_all(row: Record, _record: Record) -> str:
    """The sparsity over all weights and biases, where biases may be left alone and uncounted."""
    total = MODELS[row["config"]["model"]].totals[row["config"]["dataset"]]
    left = [run["kept"] + total - run["total"] for run in row["runs"]]
    return f"{100 * (1 - sum(left) / len(left) / total):.2f}"


OF_ALL = ("of all %", _of_all)  # a further column


def why_missing(row: Record) -> str:
    """Why runs of a row are missing; empty if none is, or if they were not tried."""
    said = [f"seed {one['seed']} failed: {one['error']}" for one in row.get("failed", [])]
    if row.get("data") == "absent":
        said.insert(0, f"{row['config']['dataset']} is not here (snip data)")
    return " ".join(said)


def _missing(record: Record) -> list[str]:
    """What `why_missing` says of the rows, each sentence once with the rows that it is about."""
    rows: dict[str, list[str]] = {}
    for row in record["rows"]:
        if why_missing(row):
            rows.setdefault(why_missing(row), []).append(f"{row['label']} {row['config']['model']}")
    return [f"missing: {listed(names)}: {state}" for state, names in rows.items()]


def _told_rows(record: Record) -> list[Record]:
    return [row for row in record["rows"] if row["runs"] or why_missing(row)]


def _more_cells(experiment: Experiment, row: Record, record: Record) -> list[str]:
    """The cells of the experiment's own columns, which are about finished runs."""
    return [cell(row, record) if row["runs"] else "-" for _, cell in experiment.columns]


def show_record(experiment: Experiment, record: Record) -> None:
    """Print the table, with what must be said beside it."""
    say(record["title"])
    # A sentence in a cell would leave the other columns no room: here it stands below the table.
    heading, rows = table_of(experiment, record, reasons=False)
    if rows:
        _show_rows(heading, rows)
    if experiment.measured_table is not None and MEASURED in record:
        show_table(*experiment.measured_table(record[MEASURED]))
    for line in (*_missing(record), *captions(record)):
        say(line)


def _show_rows(heading: list[str], rows: list[list[str]]) -> None:
    """Print the rows; a network that all are of is told once, to leave the others room."""
    place = heading.index("network")
    networks = {row[place] for row in rows}
    if len(networks) == 1:
        say(f"network: {networks.pop()}")
        heading, *rows = [line[:place] + line[place + 1 :] for line in (heading, *rows)]
    show_table(heading, rows, keys=heading.index("sparsity %") + 1)


def write_tables(experiment: Experiment, record: Record, stem: Path) -> None:
    """Write NAME.md and NAME.csv."""
    for ending, text in table_files(experiment, record).items():
        write_text(stem.with_name(f"{stem.name}.{ending}"), text)


def table_files(experiment: Experiment, record: Record) -> dict[str, str]:
    """The texts of NAME.md and NAME.csv, by their endings."""
    parts = [f"# {record['title']}", f"{command_of(record)}."]
    heading, rows = table_of(experiment, record)
    if rows:
        parts.append(markdown(heading, rows))
    if experiment.measured_table is not None and MEASURED in record:
        parts.append(markdown(*experiment.measured_table(record[MEASURED])))
    parts += captions(record)
    return {"md": "\n\n".join(parts) + "\n", "csv": _csv(experiment, record)}


def markdown(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as Markdown."""
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(
        "| " + " | ".join(_in_markdown(cell) for cell in line) + " |" for line in lines
    )


def _csv(experiment: Experiment, record: Record) -> str:
    """A line per row with plain numbers; of a record without rows, what was measured."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    if not record["rows"] and experiment.measured_table is not None:
        if MEASURED not in record:
            return ""
        heading, rows = experiment.measured_table(record[MEASURED])
        writer.writerows([heading, *rows])
        return file.getvalue()
    numbers = [f"{rule}_{what}" for rule in ("selected", "best") for what in CSV_NUMBERS]
    names = [name for name, _ in experiment.columns]
    writer.writerow([*CSV_FIELDS, *numbers, "seeds", *names, "missing"])
    for row in _told_rows(record):
        about = {**row["config"], **row}
        if not about["sparsity"]:  # nothing is pruned, whatever the configuration would prune by
            about["method"] = "dense"
        found = [
            row[rule][what] if row[rule] else ""
            for rule in ("selected", "best")
            for what in CSV_NUMBERS
        ]
        more = [*map(_plain, _more_cells(experiment, row, record)), why_missing(row)]
        writer.writerow([*(about[n] for n in CSV_FIELDS), *found, len(row["runs"]), *more])
    return file.getvalue()


def _plain(cell: str) -> str:
    """A cell for programs: a number in digits alone, and nothing where there is nothing."""
    if cell == "-":
        return ""
    return cell.replace(",", "") if re.fullmatch(r"\d{1,3}(,\d{3})+", cell) else cell


def _in_markdown(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")


def _paper(row: Record) -> str:
    return f"{row['paper']} ± {row['paper_std']:.2f}" if row["paper_std"] else row["paper"] or "-"


def _seeds(row: Record) -> str:
    done, asked = len(row["runs"]), row["asked"]
    return str(done) if done == asked else f"{done} of {asked}"
