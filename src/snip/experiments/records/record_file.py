"""An experiment's record on its way into its file: joined with what other commands wrote to it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from snip.common.console import remark
from snip.common.errors import FileError
from snip.common.files import NOTHING_CHANGED, write_json
from snip.common.lock import waiting_lock
from snip.common.text import counted
from snip.experiments.kinds import Experiment, Record, Row
from snip.experiments.records.drawing import save_figure
from snip.experiments.records.parts import MEASURED, Parts
from snip.experiments.records.record import Known, make_record
from snip.experiments.records.results_file import OTHERS, read_record, record_path
from snip.experiments.records.tables import write_tables


class RecordFile:
    """What is known of an experiment at one scale, and the files that show it."""

    def __init__(self, experiment: Experiment, results: Path, scale: float, command: str) -> None:
        self.experiment, self.results = experiment, results
        self.scale, self.command = scale, command
        self.path = record_path(results, experiment, scale)
        self.stem = self.path.with_name(self.path.name.removesuffix(".json"))
        self.known, self.parts = Known(), Parts()
        self._told_of_others = False
        self.undrawn = ""  # why the figure that was last asked for could not be written

    def read(self) -> None:
        """Take over what the file holds that this command has not seen or measured itself."""
        before = read_record(self.path, self.experiment)
        self.known.join(Known.of_record(before))
        self.parts.join(before)

    def read_runs_of(self, others: Sequence[Experiment]) -> None:
        """Take over the runs that the files of other experiments hold: many share some."""
        for other in others:
            path = record_path(self.results, other, self.scale)
            self.known.add(read_record(path, other))

    def record(self, rows: Sequence[tuple[Row, Sequence[int]]]) -> Record:
        """What is known now of these rows, each with the seeds that are asked for."""
        return make_record(
            self.experiment,
            rows,
            self.known,
            scale=self.scale,
            command=self.command,
            more=self.parts.held,
        )

    def write(self, rows: Sequence[tuple[Row, Sequence[int]]], *, drawn: bool) -> Record:
        """Write record and tables with all that is known by now, also to other commands on them.

        What is written of one state is written under one lock, `drawn` or not: else another
        command's newer table could be replaced by an older one.
        """
        with waiting_lock(self.results):
            self.read()
            record = self.record(rows)
            write_json(self.path, record)
            write_tables(self.experiment, record, self.stem)
            self.undrawn = self._draw(record) if drawn else ""
        self._tell_of_others(record)
        return record

    def _draw(self, record: Record) -> str:
        """Write the figure, if there is anything to draw; a sentence if it could not be written.

        The numbers are written by then: a full disk must not keep anybody from seeing them.
        """
        if self.experiment.draw is None or not (record["done"] or MEASURED in record):
            return ""
        try:
            save_figure(self.experiment.draw(record), self.stem)
        except FileError as error:
            reason = str(error).removesuffix(NOTHING_CHANGED)
            return f"{reason} The tables are written and the runs kept: the same command draws it."
        return ""

    def _tell_of_others(self, record: Record) -> None:
        """Say once that there are runs which are kept and not shown."""
        count = len(record.get(OTHERS, ()))
        if count and not self._told_of_others:
            self._told_of_others = True
            remark(
                f"note: {counted(count, 'run')} in {self.path} fit no row of this version, as if "
                "another one made them: they stay in it, and no table shows them."
            )
