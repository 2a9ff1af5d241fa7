"""One experiment by command: its runs in processes, its record, tables and figure as they come."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from snip.common.checks import checked_number, checked_whole
from snip.common.console import remark, track
from snip.common.errors import FileError, InputError
from snip.common.machine import note_code
from snip.common.text import counted, listed
from snip.data import load
from snip.experiments.kinds import Experiment, Record, Row, nothing_more, scaled
from snip.experiments.records.parts import (
    MEASURED,
    TIMED,
    has_something,
    is_current,
    warn_of_old_times,
)
from snip.experiments.records.record import run_entry
from snip.experiments.records.record_file import RecordFile
from snip.experiments.sweep.needs import absent_data, require_writable
from snip.experiments.sweep.order import tasks_in_line
from snip.experiments.sweep.pool import Pool
from snip.experiments.sweep.progress import Progress
from snip.experiments.sweep.request import Request, chosen_rows
from snip.experiments.sweep.work import DIVERGED, DONE, FULL, Outcome, Task
from snip.runs import RunConfig, RunResult
from snip.runs.folder import FINISHED, require_own, state_of
from snip.runs.pace import Pace

DRAWN_EVERY = 30.0  # seconds: a figure takes one or two


class Reproduction:
    """An experiment under way: what is known of it, and what is still to be done."""

    def __init__(
        self, experiment: Experiment, request: Request, others: Sequence[Experiment] = ()
    ) -> None:
        """`others` are experiments whose results may hold runs of this one: many share some."""
        note_code()
        if experiment.fewest_seeds is not None and request.seeds is not None:
            checked_whole("seeds", request.seeds, least=experiment.fewest_seeds)
        self.experiment, self.request, self._others = experiment, request, others
        rows = experiment.rows()
        self.rows = [
            replace(row, config=scaled(row.config, request.scale)).with_data(request.place.data_dir)
            for row in rows
        ]
        self.chosen = chosen_rows(self.rows, request.only, experiment.name)
        self._file = RecordFile(experiment, request.results, request.scale, request.command)
        self.path, self.stem = self._file.path, self._file.stem
        self.known, self.parts = self._file.known, self._file.parts
        self._read_records()
        self.failures: list[str] = []
        self._drawn = 0.0
        self._find_data()
        self.pace = Pace.of_folder(request.place.out)
        self._read: set[str] = set()

    def _read_records(self) -> None:
        """Take over what the results hold, and with `missing` what those of others hold as well."""
        self._file.read()
        # Where an experiment keeps more of a run, such as its curve, others' results lack that.
        if self.request.missing and self.experiment.keep is nothing_more:
            self._file.read_runs_of(self._others)

    def _find_data(self, *, fetch: bool = False) -> None:
        """Note which rows have data that is here or may be fetched; of others say what to do."""
        names, asked = ({row.config.dataset for row in rows} for rows in (self.rows, self.chosen))
        absent = absent_data(names, asked, self.request.place, fetch=fetch)
        self.known.absent = frozenset(absent)
        self._here = [row for row in self.rows if row.config.dataset not in absent]
        for name, sentence in absent.items():
            count = sum(row.config.dataset == name for row in self.chosen)
            if count:
                rows = counted(count, "row")
                self._fail(f"{rows} of {self.experiment.name} left out: {sentence}")

    def _begin(self) -> None:
        """Tell before anything slow that results cannot be written, and fetch what may be."""
        require_writable(self.request.results)
        if self.chosen:
            require_writable(self.request.place.out)
        if self.request.place.download:
            self._find_data(fetch=True)

    def seeds(self, row: Row) -> range:
        """The seeds of a row: as many as are asked of it, or as it or the experiment has.

        Of a trial all rows have as many as were asked of some: it has no number of its own.
        """
        is_asked = row in self.chosen or self.request.scale != 1
        asked = self.request.seeds if is_asked else None
        return range(asked or row.seeds or self.experiment.seeds)

    def has_data(self, row: Row) -> bool:
        """Whether a row can be run with the data that is here, or that may be fetched."""
        return row in self._here

    def read_runs(self, *, shown: bool = False) -> None:
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
                if self.request.missing and name in self.known.runs:
                    continue  # a first training that was done again leaves its result as it is
                self._read.add(name)
                try:
                    require_own(folder, row.at(seed))
                    result = RunResult.read(folder)
                    where = self.request.place.data_dir
                    self.known.learn(run_entry(self.experiment, result, where))
                    self.pace.learn([result])
                except InputError as error:  # a damaged folder: the others are read
                    self._fail_run(row.label, row.at(seed), str(error))

    def tasks(self) -> list[Task]:
        """The runs to do, in the order in which they are done."""
        rows = [row for row in self.chosen if self.has_data(row)]
        pairs = [(seed, row) for row in rows for seed in self.seeds(row)]
        return tasks_in_line(pairs, self.pace, settled=self._is_settled, finished=self._is_done)

    def _is_settled(self, name: str) -> bool:
        """Whether nothing is to be done for a run: it is finished, or its result will do."""
        return self._is_done(name) or (self.request.missing and self.known.settles(name))

    def _is_done(self, name: str) -> bool:
        return state_of(self.request.place.out / name) == FINISHED

    def record(self) -> Record:
        """What is known now."""
        return self._file.record(self._asked())

    def update(self, *, drawn: bool = False) -> Record:
        """Write record and tables, and the figure if asked for, with all that is known by now."""
        self.read_runs()
        record = self._file.write(self._asked(), drawn=drawn)
        if self._file.undrawn:
            self._fail(self._file.undrawn)
        return record

    def _asked(self) -> list[tuple[Row, range]]:
        return [(row, self.seeds(row)) for row in self.rows]

    def run(self) -> Record:
        """Measure, do all runs, and write the record, the tables and the figure."""
        self._begin()
        self._read_records()  # again: others may have written to them since
        self.read_runs(shown=True)
        if self.experiment.measure is not None and not self.has_measures():
            self._measure()
        warn_of_old_times(self.experiment.name, self.parts.held)
        tasks = self.tasks()
        if not tasks and not has_something(record := self.record()):
            return record  # such as where all data is absent: no empty tables are written
        if tasks:
            asked = self.request
            pool = Pool(tasks, asked.jobs, asked.place, self._take, asked.workers())
            with Progress(len(tasks), self.pace, self.request) as progress:
                pool.run(progress.watch)
        return self.finish()

    def time(self, seconds: float) -> Record:
        """Time the networks in place of training them."""
        if self.experiment.time is None:
            some = listed([one.name for one in self._others if one.time is not None])
            raise InputError(f"{self.experiment.name} has nothing to time: --time is for {some}.")
        checked_number("seconds", seconds, above=0)
        self._begin()
        if self.failures:  # the first networks would be timed for nothing
            raise FileError(f"nothing was timed: {self.failures[0]}")
        self.parts.note(TIMED, self.experiment.time(self.request.place.data_dir, seconds))
        return self.finish()

    def finish(self) -> Record:
        """Write the record, the tables and the figure."""
        record = self.update(drawn=True)
        self._drawn = time.monotonic()
        return record

    def has_measures(self) -> bool:
        """Whether they were made with as many seeds as are wanted, by the code as it is now.

        With `missing`, whether they were made by any code, with as many seeds or more.
        """
        held, fewest = self.parts.held, self.experiment.fewest_seeds
        seeds = held.get(MEASURED, {}).get("seeds", 0)
        if self.request.missing:
            return MEASURED in held and (fewest is None or seeds >= self._measured_seeds)
        return is_current(held, MEASURED) and (fewest is None or seeds == self._measured_seeds)

    @property
    def _measured_seeds(self) -> int:
        return self.request.seeds or self.experiment.seeds

    def _measure(self) -> None:
        assert self.experiment.measure is not None
        place = self.request.place
        try:
            for name in self.experiment.datasets if place.download else ():
                load(name, data_dir=place.data_dir, download=True)
            start = time.monotonic()
            found = self.experiment.measure(place.data_dir, self._measured_seeds)
            self.parts.note(MEASURED, found, seconds=round(time.monotonic() - start, 1))
        except FileError as error:
            self._fail(f"{self.experiment.name}: {error}")

    def _take(self, task: Task, outcome: Outcome) -> None:
        if outcome.kind != DONE:
            diverged = outcome.kind == DIVERGED
            self._fail_run(task.label, task.config, outcome.sentence, diverged=diverged)
        if outcome.kind == FULL:  # which takes no record either
            return
        if time.monotonic() - self._drawn > DRAWN_EVERY:
            self.finish()
        else:
            self.update()

    def _fail_run(
        self, label: str, config: RunConfig, sentence: str, *, diverged: bool = False
    ) -> None:
        self.known.fail(config, sentence, diverged=diverged)
        self._fail(f"{label}, seed {config.seed}: {sentence}")

    def _fail(self, sentence: str) -> None:
        self.failures.append(sentence)
        remark(f"warning: {sentence}")
