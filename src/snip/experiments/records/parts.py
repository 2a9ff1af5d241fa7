"""The parts of a record that are no runs: measures and times, and which code they were made by."""

from __future__ import annotations

import torch

from snip.common.console import remark
from snip.common.machine import code_digest, commit
from snip.experiments.kinds import Record
from snip.masks import versions
from snip.runs.result import environment

MEASURED, TIMED = "measured", "timing"  # parts of a record beside its runs
MADE = "made"  # the part that says when and by which code the others were made


class Parts:
    """The parts of a record beside its runs, and which of them this command has made itself."""

    def __init__(self) -> None:
        self.held = Record()
        self._own: set[str] = set()

    def join(self, before: Record) -> None:
        """Take over what a record holds that was not made by this command."""
        for part in (MEASURED, TIMED):
            if part in before and part not in self._own:
                self.held[part] = before[part]
                if part in before.get(MADE, {}):
                    self.held[MADE] = {**self.held.get(MADE, {}), part: before[MADE][part]}

    def note(self, part: str, found: Record, **about: float) -> None:
        """Hold what was measured just now, with the code that it was measured by."""
        self._own.add(part)
        made = {**self.held.get(MADE, {}), part: made_now() | about}
        self.held = {**self.held, part: found, MADE: made}


def has_something(record: Record) -> bool:
    """Whether there is anything to show, if only that runs came to nothing."""
    return bool(record.get("done") or record.get("failed") or {MEASURED, TIMED} & record.keys())


def made_now() -> Record:
    """What is noted beside a part that was measured just now."""
    about = {"code": code_digest(), "commit": commit(), "versions": versions()}
    return about | environment(torch.device("cpu"))


def is_current(record: Record, part: str) -> bool:
    """Whether a part of a record is there and was made by the code as it is now."""
    made = record.get(MADE, {}).get(part, {})
    return part in record and made.get("code") == code_digest()


def warn_of_old_times(name: str, record: Record) -> None:
    """Say of which code the times of an experiment are, if that has changed since."""
    if TIMED in record and not is_current(record, TIMED):
        remark(
            f"note: the times of {name} are {origin(record, TIMED)}, and the code has changed "
            "since: --time measures them again."
        )


def date_of(record: Record, part: str) -> str:
    """When a part was made; the record's own date where that was not noted."""
    return str(record.get(MADE, {}).get(part, record)["date"])


def origin(record: Record, part: str) -> str:
    """When, by which commit or version, and on which machine a part of a record was made."""
    made = record.get(MADE, {}).get(part)
    if made is None:
        return "of an older version that noted no commit"
    source = f"commit {made['commit']}" if made["commit"] else f"version {made['versions']['snip']}"
    return f"of {made['date'][:10]}, {source}, on {machine_in_words(made['machine'])}"


def machine_in_words(machine: Record) -> str:
    """The processor and its cores, where they are known."""
    cores = machine["cores"]
    return f"{machine['cpu']}, {cores} cores" if cores is not None else str(machine["cpu"])
