"""results/NAME.json on the disk: its name, its shape, and how it is read.

A file that was damaged is refused with one sentence before anything is made of it: what is shown of
an experiment relies on the shape below.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, get_type_hints

from snip.common.checks import fits
from snip.common.errors import FileError
from snip.common.files import exists, read_json, reading
from snip.common.text import shown
from snip.experiments.kinds import DATA_NOTES, Experiment, Record
from snip.experiments.records.parts import MADE, MEASURED, TIMED
from snip.experiments.records.tables import table_files
from snip.runs import RunConfig, RunResult

FORMAT = 1
ELSEWHERE = (
    "give another --results folder, or move it away: runs whose folders are still there are read "
    "again, and of others nothing else tells"
)
OTHERS = "others"  # runs that no row of this version has
# Of a run's result, what the record repeats under the same name.
COPIED = (
    "sparsity", "kept", "total", "test_error", "best_test_error", "final_test_error",
    "valid_error", "selected_iteration", "seconds", "cost", "dataset_note", "note", "versions",
    "machine", "threads", "date",
)  # fmt: skip
LATER = ("commit", "cpu_seconds")  # the same, which older records do not have

# A shape is a type hint, a list with the shape of every part, or a dict with the shapes of named
# parts. A name with a question mark may be missing; `str` stands for all names that are there.
Shape = Any
_RESULT, _CONFIG = get_type_hints(RunResult), get_type_hints(RunConfig)
MACHINE = {"cpu": str, "cores": int | None}
RUN: Shape = {
    **{name: _RESULT[name] for name in COPIED},
    **{f"{name}?": _RESULT[name] for name in LATER},
    "run": str,
    "seed": int,
    "iterations": int,
    "engine?": str | None,
    "cost": {str: {"iterations": float, "seconds": float, "cpu_seconds?": float}},
    "machine": MACHINE,
}
CONFIG: Shape = {
    **{name: _CONFIG[name] for name in ("model", "dataset", "method", "sparsity", "granularity")},
    "score_batch_size": int,
    "train": {"iterations": int},
}
ROW: Shape = {
    "label": str,
    "paper": str,
    "paper_std": float,
    "config": CONFIG,
    "asked": int,
    "runs": [RUN],
    "failed?": [{"run": str, "seed": int, "error": str, "diverged?": bool}],
}
SUMMARY: Shape = {"mean": float, "std": float | None, "against": str | None}
MADE_BY: Shape = {
    "code": str, "commit": str, "date": str, "versions": {"snip": str}, "machine": MACHINE,
    "seconds?": float,
}  # fmt: skip
RECORD: Shape = {
    "title": str, "command": str, "scale": float, "notes": list[str], "done": int, "asked": int,
    "failed?": int, "seconds": float, "date": str, "machine": MACHINE, "rows": [ROW],
    f"{OTHERS}?": [RUN],
    f"{MEASURED}?": {"seeds?": int, f"{DATA_NOTES}?": list[str]},
    f"{TIMED}?": {},
    f"{MADE}?": {str: MADE_BY},
}  # fmt: skip


def record_path(results: Path, experiment: Experiment, scale: float) -> Path:
    """The record's file; a trial at another scale never replaces results."""
    name = experiment.name if scale == 1 else f"{experiment.name}-scale-{scale}"
    return results / f"{name}.json"


def read_record(path: Path, experiment: Experiment) -> Record:
    """An earlier record, or an empty one; a broken one, or of another version, is refused."""
    if not exists(path):
        return {"rows": []}
    record, name = read_json(path, fix=ELSEWHERE), experiment.name
    if record.get("experiment") != name or record.get("format") != FORMAT:
        raise FileError(
            f"{path} is of experiment {record.get('experiment', 'unknown')!s:.40}, format "
            f"{record.get('format', 'none')!s:.20}; this version writes {name}, format {FORMAT}: "
            f"{ELSEWHERE}."
        )
    with reading(path, fix=ELSEWHERE):
        _require(record, RECORD, "")
        if record_path(path.parent, experiment, record["scale"]).name != path.name:
            raise ValueError(f"its scale is {record['scale']}")
        for number, row in enumerate(record["rows"]):
            numbers = {rule: SUMMARY if row["runs"] else NoneType for rule in ("selected", "best")}
            _require(row, numbers, f"rows[{number}]")
            _require_seeds((*row["runs"], *row.get("failed", ())), f"rows[{number}]")
        _require_seeds(record.get(OTHERS, ()), OTHERS)
        # The rest differs from experiment to experiment: it is whole if it can be shown.
        table_files(experiment, record)
        if experiment.unpack is not None:
            experiment.unpack(record)
    return record


def _require_seeds(runs: Sequence[Record], where: str) -> None:
    least = min((run["seed"] for run in runs), default=0)
    if least < 0:
        raise ValueError(f"a seed of {where} is {least}")


def _require(value: Any, shape: Shape, where: str) -> None:
    """Raise ValueError, naming the first part of a value that is not of this shape."""
    if isinstance(shape, dict) and isinstance(value, dict):
        for name, inner in _named(shape, value, where):
            _require(value[name], inner, f"{where}.{name}".removeprefix("."))
    elif isinstance(shape, list) and isinstance(value, list):
        for number, part in enumerate(value):
            _require(part, shape[0], f"{where}[{number}]")
    elif isinstance(shape, (dict, list)) or not fits(value, shape):
        raise ValueError(f"{where} is {shown(value)}")


def _named(shape: Shape, value: Record, where: str) -> Iterator[tuple[str, Shape]]:
    """The parts of a value that its shape names, with their shapes."""
    for name, inner in shape.items():
        if name is str:
            yield from ((every, inner) for every in value)
        elif name.removesuffix("?") in value:
            yield name.removesuffix("?"), inner
        elif not name.endswith("?"):
            raise ValueError(f"{where or 'it'} has no {name}")
