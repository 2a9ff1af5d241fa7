"""docs/gallery.md: what we found of the paper's claims, and every table and figure beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from snip.common.text import duration
from snip.experiments import EXPERIMENTS
from snip.experiments.gallery.verdicts import Found, Judged, anchor, claim_text, verdict_table
from snip.experiments.kinds import Record
from snip.experiments.records.captions import captions, command_of, schedule_in_words
from snip.experiments.records.parts import MEASURED, date_of
from snip.experiments.records.summary import AGREES, HIGHER, LOWER, MARKS, ROUNDED
from snip.experiments.records.tables import markdown, table_of

COMMAND = "python -m snip.experiments.gallery"
WORDS = {
    "reference, dense": "the network without pruning; *base*: the row of the paper without "
    "any change, to which the changes of an ablation are compared",
    "full schedule": "the paper's rates, and drops every 25,000 steps (MNIST) or 30,000. It does "
    "not say how long it trains: 75,000 steps on MNIST are our choice, 150,000 on CIFAR-10 and "
    "Tiny-ImageNet are those of its authors' example command. *The paper's schedule* in notes "
    "means the same",
    "protocol redraw": "the masks come from one draw of the weights and another draw is trained "
    "under them, as in the authors' code; *train-scored*: the draw that was scored is trained, as "
    "in the paper's text",
    "dL/dc": "the derivative of the loss by a connection's switch, whose size is SNIP's score; "
    "*dL/dw*: by the weight itself",
    "VS-X, VS-H, RN, TN": "how weights are drawn: scaled by both sides of a layer (Glorot), by its "
    "inputs (He), normal with one deviation for all layers, the same truncated",
    "scope, floor": "which connections compete with each other, and how many each layer keeps at "
    "least",
    "agrees": "the paper's number is within two standard deviations of single seeds; it does not "
    "say that the means are equal. *By its rounding*: only if what its last digit rounds away is "
    "allowed as well",
    "diverged": "the loss or the weights of a training were no numbers any more",
    "commit ...+": "the code of that commit with changes that were not committed",
    "JPEG-recompressed": "the copy of the data set at hand was compressed again, so that errors "
    "may be a little higher than on the original",
}
COLUMNS = ["", "what", "runs", "seeds of a row", "schedule", "beside the paper", "time", "date"]


def gallery(found: dict[str, Found], claims: Judged, results: Path) -> str:
    """The page: the claims in short, what was run, the claims, every table and figure, words."""
    parts = [
        "# Gallery: the paper's tables and figures, and ours",
        f"Written by `{COMMAND}` from `results/`; do not edit. Errors are percent of the test "
        "images, mean and standard deviation over the seeds; *selected*: the checkpoint of lowest "
        "validation error, *best*: the lowest of all checkpoints, as the authors report. "
        "[Other words](#words) are explained at the end.",
        "## In short",
        verdict_table(claims),
        "## What was run",
        markdown(COLUMNS, _overview(found)),
        f"*Beside the paper* counts the rows whose error agrees with its number "
        f"({MARKS[AGREES]}, or {MARKS[ROUNDED]} by its rounding), is lower "
        f"({MARKS[LOWER]}) or higher ({MARKS[HIGHER]}). *Time* is that of all trainings of a "
        "line by the clock, on cores that had other work too; lines share runs, which count in "
        "each.",
        "## The paper's claims",
        "Each is judged by a stated rule. Where test errors are compared, *no* takes as much as "
        "*yes*: what chance explains (in 95 of 100 cases, by Student's t or by ranks, which ask "
        "more of few seeds than of many) stays undecided, and of fewer than three seeds nothing is "
        "decided; trials on a part of the schedule, networks on another schedule, and those that "
        "were not trained alike, are told and decide nothing, and neither does a comparison of "
        "which nothing else could come out. Rules on maps and on random labels have thresholds, "
        "which they name.",
        *(part for claim, facts in claims for part in claim_text(claim, facts)),
    ]
    for name, shown in found.items():
        for stem, record in shown:
            parts += _section(name, stem, record, results)
    words = "\n".join(f"- *{word}*: {meaning}." for word, meaning in WORDS.items())
    return "\n\n".join([*parts, "## Words", words]) + "\n"


def _overview(found: dict[str, Found]) -> list[list[str]]:
    rows = []
    for name, shown in found.items():
        if not shown:
            title = EXPERIMENTS[name].title
            rows.append([f"`{name}`", title, "not run yet", *["-"] * (len(COLUMNS) - 3)])
        for stem, record in shown:
            runs = f"{record['done']} of {record['asked']}" if record["rows"] else "-"
            rows.append(
                [
                    f"[`{stem}`](#{anchor(stem)})",
                    record["title"],
                    runs,
                    _seed_counts(record),
                    schedule_in_words(record),
                    _beside_the_paper(record),
                    duration(record["seconds"]) if record["seconds"] else "-",
                    _dates(record),
                ]
            )
    return rows


def _seed_counts(record: Record) -> str:
    """How many seeds the rows that were run have."""
    scored = record.get(MEASURED, {}).get("seeds", 0)
    counts = sorted(len(row["runs"]) for row in record["rows"] if row["runs"]) or [scored]
    fewest, most = counts[0], counts[-1]
    return f"{fewest} to {most}" if fewest != most else f"{most or '-'}"


def _beside_the_paper(record: Record) -> str:
    """How many rows agree with the paper's numbers, and how many are lower or higher."""
    counts = Counter(row["selected"]["against"] for row in record["rows"] if row["selected"])
    told = [f"{counts[kind]} {mark}" for kind, mark in MARKS.items() if kind and counts[kind]]
    return ", ".join(told) or "-"


def _section(name: str, stem: str, record: Record, results: Path) -> list[str]:
    experiment = EXPERIMENTS[name]
    seeds = _seeds(record)
    about = f"Seed{'' if seeds.isdigit() else 's'} {seeds}; {_dates(record)}."
    parts = [f"## {stem}", f"**{_ended(record['title'])}** {command_of(record)}.", about]
    if (results / f"{stem}.png").is_file():
        place = f"../results/{stem}"
        parts.append(f"[![{record['title']}]({place}.png)]({place}.svg)")
    heading, rows = table_of(experiment, record)
    parts += [markdown(heading, rows)] if rows else []
    if experiment.measured_table is not None and MEASURED in record:
        parts.append(markdown(*experiment.measured_table(record[MEASURED])))
    return [*parts, *captions(record)]


def _ended(title: str) -> str:
    return title if title.endswith("?") else f"{title}."


def _seeds(record: Record) -> str:
    """The seeds of all runs, or of what was scored; where rows have different ones, how many."""
    rows = [{run["seed"] for run in row["runs"]} for row in record["rows"] if row["runs"]]
    scored = record.get(MEASURED, {}).get("seeds", 0)
    seeds = _ranges(sorted(set().union(*rows)) or list(range(scored))) or "-"
    alike = all(row == rows[0] for row in rows)
    return seeds if alike else f"{seeds} ({_seed_counts(record)} per row)"


def _ranges(numbers: Sequence[int]) -> str:
    """Whole numbers in order, as 0-2, 5."""
    parts: list[list[int]] = []
    for value in numbers:
        if parts and parts[-1][-1] == value - 1:
            parts[-1].append(value)
        else:
            parts.append([value])
    return ", ".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)


def _dates(record: Record) -> str:
    """The first and the last day of the runs, or the day on which something was measured."""
    days = sorted(run["date"][:10] for row in record["rows"] for run in row["runs"])
    days = days or [date_of(record, MEASURED)[:10]]
    return days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
