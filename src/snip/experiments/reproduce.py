"""One experiment by command: its runs in processes, its record, tables and figure as they come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from snip.common.checks import checked_whole
from snip.common.console import remark
from snip.common.errors import FileError, InputError, listed
from snip.common.files import write_json
from snip.common.progress import track
from snip.data import DATASETS, load
from snip.data.locate import find
from snip.experiments.drawing import save_figure
from snip.experiments.kinds import Experiment, Record, Row, checked_scale, scaled
from snip.experiments.local_workers import LocalWorkers
from snip.experiments.made import MADE, MEASURED, TIMED, is_current, made_now, origin
from snip.experiments.pool import Pool, Workers
from snip.experiments.progress import Progress
from snip.experiments.ray_workers import LOCAL, RayWorkers, is_ray
from snip.experiments.record import Known, file_name, make_record, read_record, run_entry
from snip.experiments.tables import write_tables
from snip.experiments.work import DONE, FULL, Outcome, Place, Task
from snip.runs import RunConfig, RunResult
from snip.runs.folder import FINISHED, state_of
from snip.runs.in_phases import method_of
from snip.runs.pace import Pace


@dataclass(frozen=True)
class Request:
    """What a command asks of an experiment."""

    place: Place
    results: Path
    seeds: int | None = None  # how many; by default the experiment's own number
    jobs: int = 1
    scale: float = 1.0
    only: tuple[str, ...] = ()
    command: str = ""
    on: str = LOCAL  # or "ray", "ray://host:port"

    def __post_init__(self) -> None:
        is_ray(self.on)
        checked_scale(self.scale)
        checked_whole("jobs", self.jobs, least=1)
        if self.seeds is not None:
            checked_whole("seeds", self.seeds, least=1)

    def workers(self) -> Workers:
        """Where the runs are done."""
        if is_ray(self.on):
            return RayWorkers(self.on, self.jobs, self.place)
        return LocalWorkers(self.place)


class Reproduction:
    """An experiment under way: what is known of it, and what is still to be done."""

    def __init__(self, experiment: Experiment, request: Request) -> None:
        self.experiment, self.request = experiment, request
        rows = experiment.rows()
        self.rows = [
            replace(row, config=scaled(row.config, request.scale)).with_data(request.place.data_dir)
            for row in rows
        ]
        self.chosen = _chosen(self.rows, request.only, experiment.name)
        self.stem = request.results / file_name(experiment, request.scale)
        before = read_record(self.path, experiment.name)
        self.known = Known.of_record(before)
        self.more = {name: before[name] for name in (MEASURED, TIMED, MADE) if name in before}
        self.failures: list[str] = []
        self._here = self._rows_with_data()
        self.pace = Pace.of_folder(request.place.out)
        self._read: set[str] = set()

    @property
    def path(self) -> Path:
        """The record's file."""
        return self.stem.with_name(f"{self.stem.name}.json")

    def seeds(self, row: Row) -> range:
        """The seeds of a row: as many as asked for, or as the row or the experiment has."""
        return range(self.request.seeds or row.seeds or self.experiment.seeds)

    def has_data(self, row: Row) -> bool:
        """Whether a row can be run with the data that is here, or that may be fetched."""
        return row in self._here

    def look(self, *, shown: bool = False) -> None:
        """Read the results of all finished runs that were not read before; `shown` by a bar.

        Some rows must score a network before they know their runs, which takes seconds.
        """
        total = len(self._here)
        bar = track(self._here, description="looking at runs", total=total)
        for row in bar if shown else self._here:
            for seed in self.seeds(row):
                name = row.at(seed).folder_name
                folder = self.request.place.out / name
                if name in self._read or state_of(folder) != FINISHED:
                    continue
                self._read.add(name)
                try:
                    result = RunResult.read(folder)
                    self.known.runs[name] = run_entry(self.experiment, result)
                    self.pace.learn([result])
                except InputError as error:  # a damaged folder: the others are read
                    self._fail_run(row.label, row.at(seed), str(error))

    def tasks(self) -> list[Task]:
        """The runs to do, seed by seed, each after the first training that it needs."""
        tasks: dict[str, Task] = {}
        rows = [row for row in self.chosen if self.has_data(row)]
        pairs = [(seed, row) for row in rows for seed in self.seeds(row)]
        for seed, row in sorted(pairs, key=lambda pair: pair[0]):
            config, first = row.at(seed), None
            if self._is_done(config.folder_name):
                continue
            if method_of(config) is not None:
                needed = config.trained_first
                first = needed.folder_name
                if not self._is_done(first):
                    tasks.setdefault(first, Task(f"first training of {needed.model}", needed))
            tasks.setdefault(config.folder_name, Task(row.label, config, first))
        return list(tasks.values())

    def _is_done(self, name: str) -> bool:
        return state_of(self.request.place.out / name) == FINISHED

    def record(self) -> Record:
        """What is known now."""
        return make_record(
            self.experiment,
            [(row, self.seeds(row)) for row in self.rows],
            self.known,
            scale=self.request.scale,
            command=self.request.command,
            more=self.more,
        )

    def update(self) -> Record:
        """Write the record with all that is known by now."""
        self.look()
        record = self.record()
        write_json(self.path, record)
        return record

    def run(self) -> Record:
        """Measure, do all runs, and write the record, the tables and the figure."""
        self.look(shown=True)
        if self.request.on != LOCAL and not self.rows:
            remark(f"note: {self.experiment.name} has no runs: it is computed here.")
        if self.experiment.measure is not None and not is_current(self.more, MEASURED):
            self._measure()
        if TIMED in self.more and not is_current(self.more, TIMED):
            remark(
                f"note: the times of {self.experiment.name} are {origin(self.more, TIMED)}, and "
                "the code has changed since: --time measures them again."
            )
        tasks = self.tasks()
        if tasks:
            asked = self.request
            pool = Pool(tasks, asked.jobs, asked.place, self._take, asked.workers())
            with Progress(len(tasks), self.pace, self.request) as progress:
                pool.run(progress.watch)
        return self.finish()

    def time(self, seconds: float) -> Record:
        """Time the networks in place of training them."""
        if self.experiment.time is None:
            raise InputError(
                f"{self.experiment.name} has nothing to time: --time is for granularity, budgets."
            )
        self._note(TIMED, self.experiment.time(self.request.place.data_dir, seconds))
        return self.finish()

    def finish(self) -> Record:
        """Write the record, the tables and the figure."""
        record = self.update()
        write_tables(self.experiment, record, self.stem)
        if self.experiment.draw is not None and (record["done"] or MEASURED in record):
            save_figure(self.experiment.draw(record), self.stem)
        return record

    def _measure(self) -> None:
        assert self.experiment.measure is not None
        try:
            found = self.experiment.measure(self.request.place.data_dir, self.request.scale)
            self._note(MEASURED, found)
        except FileError as error:
            self._fail(f"{self.experiment.name}: {error}")

    def _note(self, part: str, found: Record) -> None:
        """Take what was measured into the record, with the code that it was measured by."""
        self.more = {**self.more, part: found, MADE: {**self.more.get(MADE, {}), part: made_now()}}

    def _rows_with_data(self) -> list[Row]:
        """The rows whose data is here, or may be fetched; of the others it is said what to do."""
        place, rows = self.request.place, self.rows
        for name in sorted({row.config.dataset for row in rows}):
            if place.download or find(DATASETS[name], place.data_dir) is not None:
                continue
            self.known.absent |= {name}
            rows = [row for row in rows if row.config.dataset != name]
            count = sum(row.config.dataset == name for row in self.chosen)
            try:
                load(name, data_dir=place.data_dir)  # which says where it looked
            except FileError as error:
                if count:
                    self._fail(f"{count} rows of {self.experiment.name} are left out: {error}")
        return rows

    def _take(self, task: Task, outcome: Outcome) -> None:
        if outcome.kind != DONE:
            self._fail_run(task.label, task.config, outcome.sentence)
        if outcome.kind != FULL:  # a full disk takes no record either
            self.update()

    def _fail_run(self, label: str, config: RunConfig, sentence: str) -> None:
        self.known.fail(config, sentence)
        self._fail(f"{label}, seed {config.seed}: {sentence}")

    def _fail(self, sentence: str) -> None:
        self.failures.append(sentence)
        remark(f"warning: {sentence}")


def matching(rows: Sequence[Row], only: Sequence[str]) -> list[Row]:
    """The rows whose label or configuration holds one of the texts."""
    texts = [text.lower() for text in only]
    names = {id(row): f"{row.label} {row.config.folder_name}".lower() for row in rows}
    return [row for row in rows if any(text in names[id(row)] for text in texts)]


def _chosen(rows: Sequence[Row], only: Sequence[str], name: str) -> list[Row]:
    """The rows that are asked for: all, or those that match."""
    chosen = matching(rows, only) if only else list(rows)
    if not chosen and rows:
        labels = list(dict.fromkeys(row.label for row in rows))
        raise InputError(
            f"--only {', '.join(only)} is in no row of {name}: its rows are {listed(labels)}; "
            "parts of a network's or a method's name do too."
        )
    return chosen
