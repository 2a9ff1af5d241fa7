"""results/NAME.json: what was run, with which configuration and seeds, and what came out.

Run folders are the truth. The file holds their numbers, so that tables and figures can be made
where the folders are not, and keeps those of runs whose folders are gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from snip.common.errors import FileError
from snip.common.text import first_sentence
from snip.experiments.kinds import Experiment, Record, Row
from snip.experiments.records.results_file import COPIED, FORMAT, LATER, OTHERS
from snip.experiments.records.summary import summary
from snip.masks import versions
from snip.runs import RunConfig, RunResult
from snip.runs.result import environment


def runs_of(record: Record) -> dict[str, Record]:
    """The runs of any experiment's record by their folders, without what it alone keeps of them."""
    names = ("run", "seed", "iterations", "engine", *COPIED, *LATER)
    runs = [*record.get(OTHERS, ()), *(run for row in record["rows"] for run in row["runs"])]
    return {run["run"]: {name: run[name] for name in names if name in run} for run in runs}


@dataclass
class Known:
    """What is known of an experiment's runs; all but `absent` by the names of their folders."""

    runs: dict[str, Record] = field(default_factory=dict)
    failed: dict[str, Record] = field(default_factory=dict)  # with the seed and the error
    rows: dict[tuple[str, str], list[str]] = field(default_factory=dict)  # of an earlier record
    recorded: set[str] = field(default_factory=set)  # runs that the experiment's own record has
    own: set[str] = field(default_factory=set)  # runs that this command has read or seen fail
    absent: frozenset[str] = frozenset()  # data sets that are not here

    def learn(self, entry: Record) -> None:
        """Note what a run's own folder says."""
        self.runs[entry["run"]] = entry
        self.own.add(entry["run"])

    def fail(self, config: RunConfig, error: str, *, diverged: bool = False) -> None:
        """Note that a run came to nothing, and whether its loss or weights were no numbers."""
        name, sentence = config.folder_name, first_sentence(error)
        about = {"run": name, "seed": config.seed, "error": sentence}
        self.failed[name] = about | ({"diverged": True} if diverged else {})
        self.own.add(name)

    def settles(self, name: str) -> bool:
        """Whether it is known what comes out of a run, if only that it diverges."""
        return name in self.runs or self.failed.get(name, {}).get("diverged", False)

    def join(self, newer: Known) -> None:
        """Take over what a newer record knows, but for what this command has found out itself.

        A run that failed here may have been finished by another command: its result stays.
        """
        read = self.own & self.runs.keys()
        self.runs |= {name: run for name, run in newer.runs.items() if name not in read}
        self.failed |= {name: one for name, one in newer.failed.items() if name not in self.own}
        self.rows |= newer.rows
        self.recorded |= newer.recorded

    def add(self, record: Record) -> None:
        """Add the runs of another experiment's record that are not known here."""
        self.runs = runs_of(record) | self.runs
        failed = [one for row in record["rows"] for one in row.get("failed", ())]
        diverged = {one["run"]: one for one in failed if one.get("diverged")}
        self.failed = diverged | self.failed

    @classmethod
    def of_record(cls, record: Record) -> Known:
        """What an earlier record knows."""
        known = cls()
        known.runs |= {run["run"]: run for run in record.get(OTHERS, ())}
        for row in record["rows"]:
            entries = row["runs"]
            known.runs |= {run["run"]: run for run in entries}
            failed = row.get("failed", [])
            known.failed |= {one["run"]: one for one in failed}
            if "config" in row:
                names = [one["run"] for one in [*entries, *failed]]
                known.rows[_place(row["label"], row["config"])] = names
        known.recorded = {*known.runs}
        return known

    def others(self, rows: Sequence[Record]) -> list[Record]:
        """Recorded runs that no row has: of a version whose rows were configured in another way."""
        told = {run["run"] for row in rows for run in row["runs"]}
        return [self.runs[name] for name in sorted(self.recorded - told)]


def _place(label: str, config: Record) -> tuple[str, str]:
    """What tells a row from others where its runs cannot be named."""
    return label, f"{config['model']} {config['dataset']} {config['sparsity']}"


def run_entry(experiment: Experiment, result: RunResult, data_dir: Path | None) -> Record:
    """What the record holds of one finished run. Nothing in it is a place on this machine."""
    kept = experiment.keep(result, data_dir)
    entry = {
        "run": result.config.folder_name,
        "seed": result.config.seed,
        "iterations": result.config.last_training.iterations,
        "engine": result.engine.get("engine"),
    }
    return entry | {name: getattr(result, name) for name in (*COPIED, *LATER)} | kept


def row_entry(
    row: Row, seeds: Sequence[int], known: Known, *, whole: bool, wanted: int = 0
) -> Record:
    """One row: its configuration, its runs of all seeds that are known, and their summary.

    Only runs of the whole schedule, and of the paper's, are held against its number. `wanted` is
    how many of them make the row complete, however few a command asks for.
    """
    config = {name: value for name, value in row.config.to_dict().items() if name != "seed"}
    names = _run_names(row, seeds, config, known)
    found = [known.runs[name] for name in names if name in known.runs]
    failed = [known.failed[n] for n in names if n in known.failed and n not in known.runs]
    lacking = len(found) < len(seeds)
    entry = {
        "label": row.label,
        "paper": row.paper,
        "paper_std": row.paper_std,
        **row.about,
        "config": config,
        "asked": max(len({*seeds, *(one["seed"] for one in (*found, *failed))}), wanted),
        "runs": found,
        "failed": failed,
        "data": "absent" if lacking and row.config.dataset in known.absent else "here",
    }
    for rule, name in (("selected", "test_error"), ("best", "best_test_error")):
        errors = [run[name] for run in found]
        paper = row.paper if whole and row.marked else ""
        entry[rule] = summary(errors, paper, row.paper_std) if errors else None
    return entry


def _run_names(row: Row, seeds: Sequence[int], config: Record, known: Known) -> list[str]:
    """The folders of a row's runs, for all seeds that are asked for or known."""
    tried = (one["seed"] for one in (*known.runs.values(), *known.failed.values()))
    wanted = sorted({*seeds, *tried})
    try:
        return [row.at(seed).folder_name for seed in wanted]
    except FileError:  # a row may have to look at its data first, which is not here
        return known.rows.get(_place(row.label, config), [])


def make_record(
    experiment: Experiment,
    rows: Sequence[tuple[Row, Sequence[int]]],
    known: Known,
    *,
    scale: float,
    command: str,
    more: Record,
) -> Record:
    """The whole record of an experiment, from the runs that are known so far.

    `more` is what was measured beside the runs.
    """
    entries = []
    for row, seeds in rows:
        wanted = (row.seeds or experiment.seeds) if scale == 1 else 0
        entries.append(row_entry(row, seeds, known, whole=scale == 1, wanted=wanted))
    others = known.others(entries)
    record = {
        "format": FORMAT,
        "experiment": experiment.name,
        "title": experiment.title,
        "command": command,
        "scale": scale,
        "errors": "percent of the test images: mean and sample standard deviation over the seeds; "
        "selected: the checkpoint of lowest validation error; best: the lowest of all "
        "checkpoints, as the authors report",
        "notes": list(experiment.notes),
        "rows": entries,
        "done": sum(len(entry["runs"]) for entry in entries),
        "asked": sum(entry["asked"] for entry in entries),
        "failed": sum(len(entry["failed"]) for entry in entries),
        "seconds": _seconds([run for entry in entries for run in entry["runs"]]),
        "versions": versions(),
        **environment(torch.device("cpu")),
        **({OTHERS: others} if others else {}),
    }
    return record | more


def empty_record(experiment: Experiment) -> Record:
    """The record of an experiment of which nothing is run."""
    rows = [(row, ()) for row in experiment.rows()]
    return make_record(experiment, rows, Known(), scale=1, command="", more={})


def _seconds(runs: Sequence[Record]) -> float:
    """Of all trainings. Rows share runs, and methods their first training: each counts once."""
    alone = {run["run"]: run["seconds"] for run in runs}
    # Equal to the last bit, two are the same training, which several runs have noted.
    before = {phase["seconds"] for run in runs for phase in run["cost"].values()}
    return sum(alone.values()) + sum(before - set(alone.values()))
