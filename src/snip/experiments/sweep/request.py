"""What a command asks of an experiment: which rows, how many seeds, where and how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from snip.common.checks import checked_whole
from snip.common.errors import InputError
from snip.common.lock import require_folder
from snip.common.text import listed
from snip.data.locate import check_named_folder
from snip.experiments.kinds import OF, Row, checked_scale
from snip.experiments.sweep.local_workers import LocalWorkers
from snip.experiments.sweep.pool import Workers
from snip.experiments.sweep.ray_workers import LOCAL, RayWorkers, is_ray
from snip.experiments.sweep.work import Place
from snip.runs.naming import look

MOST_SEEDS = 10_000  # more would only be looked for, for minutes


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
    missing: bool = False  # leave out what the results have, though the folders are gone

    def __post_init__(self) -> None:
        is_ray(self.on)
        checked_scale(self.scale)
        checked_whole("jobs", self.jobs, least=1)
        for folder in (self.place.out, self.results):
            require_folder(folder)
        if self.place.data_dir is not None and not self.place.download:
            check_named_folder(self.place.data_dir)
        if not all(text.strip() for text in self.only):
            raise InputError("--only was given no text: leave it out for all rows.")
        if self.seeds is not None:
            checked_whole("seeds", self.seeds, least=1, most=MOST_SEEDS)

    def workers(self) -> Workers:
        """Where the runs are done."""
        if is_ray(self.on):
            return RayWorkers(self.on, self.jobs, self.place)
        return LocalWorkers(self.place)


def matching(rows: Sequence[Row], only: Sequence[str]) -> list[Row]:
    """The rows whose label or configuration holds one of the texts.

    A text that is the whole label or network of some rows stands for these alone, and for what
    changes that network.
    """
    texts = [text.lower() for text in only]
    whole = {text: [row for row in rows if text in _names(row)] for text in texts}

    def is_meant(row: Row, text: str) -> bool:
        if whole[text]:
            return row in whole[text]
        # Not in the name of its folder, whose digest may hold any short text.
        return text in f"{row.label} {row.config.model} {look(row.config)}".lower()

    return [row for row in rows if any(is_meant(row, text) for text in texts)]


def _names(row: Row) -> tuple[str, ...]:
    changes, _, _ = str(row.about.get(OF, "")).partition(",")
    return row.label.lower(), row.config.model, changes


def chosen_rows(rows: Sequence[Row], only: Sequence[str], name: str) -> list[Row]:
    """The rows that are asked for: all, or those that match; a text that no row has is refused."""
    for text in only if rows else ():
        if not matching(rows, [text]):
            labels = list(dict.fromkeys(row.label for row in rows))
            raise InputError(
                f"--only {text} is in no row of {name}: its rows are {listed(labels)}. Give one of "
                "these, or a part of the name of a network or a method."
            )
    return matching(rows, only) if only else list(rows)
