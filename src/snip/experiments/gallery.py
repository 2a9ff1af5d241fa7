"""The pages of the documentation that show results: `python -m snip.experiments.gallery`.

Run it at the top of the repository after new results came: it writes docs/gallery.md, the places
in docs/methods.md that are marked for results, and the tables in results/ as this code shows their
numbers. A test compares all with what is committed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from snip.common.console import complain
from snip.common.errors import InputError
from snip.common.files import damaged, reading, write_text
from snip.experiments import EXPERIMENTS
from snip.experiments.claims import CLAIMS, Claim, Fact, verdict
from snip.experiments.kinds import Record
from snip.experiments.marked import filled
from snip.experiments.records.captions import captions, what_was_run
from snip.experiments.records.made import MEASURED
from snip.experiments.records.results_file import ELSEWHERE, read_record, record_file
from snip.experiments.records.tables import markdown, table_files, table_of
from snip.training.display import duration
from snip.training.lock import waiting_lock

DOCS, RESULTS = Path("docs"), Path("results")
GALLERY, METHODS = "gallery.md", "methods.md"
COMMAND = "python -m snip.experiments.gallery"
WORDS = {
    "reference, dense": "the network without pruning; *base*: the row of the paper without "
    "any change, to which the changes of an ablation are compared",
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
    "JPEG-recompressed": "the copy of the data set at hand was compressed again, so that errors "
    "may be a little higher than on the original",
}
Found = list[tuple[str, Record]]  # the name of the files without an ending, and the record


def pages(results: Path, docs: Path) -> dict[Path, str]:
    """Every page and table that shows results, as it should be."""
    found = read_all(results)
    largest = {name: shown[0][1] for name, shown in found.items() if shown}
    methods = docs / METHODS
    with reading(methods, what="page"):
        before = methods.read_text(encoding="utf-8")
    tables = {
        results / f"{stem}.{ending}": text
        for name, shown in found.items()
        for stem, record in shown
        for ending, text in table_files(EXPERIMENTS[name], record).items()
    }
    return tables | {
        docs / GALLERY: gallery(found, largest, results),
        methods: filled(before, largest, results),
    }


def read_all(results: Path) -> dict[str, Found]:
    """The records of every experiment with something in them, the largest scale first."""
    found: dict[str, Found] = {}
    for name in EXPERIMENTS:
        paths = [results / f"{name}.json", *results.glob(f"{name}-scale-*.json")]
        records = [(path.stem, read_record(path, EXPERIMENTS[name])) for path in paths]
        some = [(stem, one) for stem, one in records if one.get("done") or MEASURED in one]
        found[name] = sorted(some, key=lambda pair: -pair[1]["scale"])
    return found


def gallery(found: dict[str, Found], largest: dict[str, Record], results: Path) -> str:
    """The page: what was run, the claims, and then every table and figure."""
    parts = [
        "# Gallery: the paper's tables and figures, and ours",
        f"Written by `{COMMAND}` from `results/`; do not edit. Errors are percent of the test "
        "images, mean and standard deviation over the seeds; *selected*: the checkpoint of lowest "
        "validation error, *best*: the lowest of all checkpoints, as the authors report.",
        markdown(["", "what", "state", "seeds", "computing", "date"], _overview(found)),
        "Computing is the time of all trainings of a line by the clock, on cores that had other "
        "work too; lines share runs, which count in each.",
        "## Words",
        "\n".join(f"- *{word}*: {meaning}." for word, meaning in WORDS.items()),
        "## The paper's claims",
        *(part for claim in CLAIMS for part in _claim(claim, largest, results)),
    ]
    for name, shown in found.items():
        for stem, record in shown:
            parts += _section(name, stem, record, results)
    return "\n\n".join(parts) + "\n"


def _overview(found: dict[str, Found]) -> list[list[str]]:
    rows = []
    for name, shown in found.items():
        if not shown:
            rows.append([f"`{name}`", EXPERIMENTS[name].title, "not run yet", "-", "-", "-"])
        for stem, record in shown:
            time = duration(record["seconds"]) if record["seconds"] else "-"
            state = what_was_run(record).removesuffix(".")
            link = f"[`{stem}`](#{_anchor(stem)})"
            rows.append([link, record["title"], state, _seeds(record), time, _dates(record)])
    return rows


def _claim(claim: Claim, largest: dict[str, Record], results: Path) -> list[str]:
    facts = _facts(claim, largest, results)
    commands = ", ".join(f"`snip reproduce {name}`" for name in claim.sources)
    said = [
        f"### {claim.title}",
        f"**{verdict(facts, claim.failed)}**. Rule: {claim.rule}. From {commands}.",
    ]
    short = [name for name in claim.sources if name in largest and largest[name]["scale"] != 1]
    if short:
        scales = ", ".join(f"{name} at {largest[name]['scale']:g}" for name in short)
        said.append(f"Not of the full schedule: {scales} of it.")
    missing = [name for name in claim.sources if name not in largest]
    if missing and facts:
        said.append(f"Not run yet: {', '.join(missing)}.")
    if facts:
        marks = {True: "yes: ", False: "no: ", None: ""}
        alone = {True: "; of a single seed", False: ""}
        lines = [f"- {marks[fact.holds]}{fact.text}{alone[fact.alone]}." for fact in facts]
        said.append("\n".join(lines))
    return said


def _facts(claim: Claim, largest: dict[str, Record], results: Path) -> list[Fact]:
    """What the records say of a claim; if that cannot be told, they are damaged."""
    try:
        return list(claim.facts(largest))
    except Exception as error:  # claims go deeper into the measures than tables do
        scales = {name: largest[name]["scale"] for name in claim.sources if name in largest}
        paths = [record_file(results, EXPERIMENTS[name], scale) for name, scale in scales.items()]
        raise damaged(" or ".join(map(str, paths)), error, ELSEWHERE) from None


def _section(name: str, stem: str, record: Record, results: Path) -> list[str]:
    experiment = EXPERIMENTS[name]
    scale = "" if record["scale"] == 1 else f" --scale {record['scale']:g}"
    whole = f"snip reproduce {name}{scale}"
    command = f"`{whole}`"
    if record["command"] != whole:
        command += f" (the last one was `{record['command']}`)"
    seeds = _seeds(record)
    about = f"Seed{'' if seeds.isdigit() else 's'} {seeds}; {_dates(record)}."
    parts = [f"## {stem}", f"**{record['title']}.** {command}", about]
    if (results / f"{stem}.png").is_file():
        place = f"../{RESULTS}/{stem}"
        parts.append(f"[![{record['title']}]({place}.png)]({place}.svg)")
    heading, rows = table_of(experiment, record)
    parts += [markdown(heading, rows)] if rows else []
    if experiment.measured_table is not None and MEASURED in record:
        parts.append(markdown(*experiment.measured_table(record[MEASURED])))
    return [*parts, *captions(record)]


def _seeds(record: Record) -> str:
    """The seeds of all runs, or of what was scored; where rows have different ones, how many."""
    rows = [{run["seed"] for run in row["runs"]} for row in record["rows"] if row["runs"]]
    scored = record.get(MEASURED, {}).get("seeds", 0)
    seeds = _ranges(sorted(set().union(*rows)) or list(range(scored))) or "-"
    counts = sorted(len(row) for row in rows) or [0]
    return seeds if counts[0] == counts[-1] else f"{seeds} ({counts[0]} to {counts[-1]} per row)"


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
    """The first and the last day of the runs."""
    days = sorted(run["date"][:10] for row in record["rows"] for run in row["runs"])
    days = days or [record["date"][:10]]
    return days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"


def _anchor(heading: str) -> str:
    return re.sub(r"[^a-z0-9-]", "", heading.lower())


def main() -> int:
    """Write all pages, or none if something is wrong, and return the exit code."""
    try:
        with waiting_lock(RESULTS):  # else a newer table of a command could be written over
            for path, text in pages(RESULTS, DOCS).items():
                write_text(path, text)
    except InputError as error:
        complain(str(error))
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
