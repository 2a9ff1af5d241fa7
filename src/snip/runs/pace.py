"""How long runs take: learnt from finished ones, or from a few measured steps.

A run takes longer while others compute on the same machine, and never less: of runs that are alike
the fastest tells how long one takes on a core of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from snip.common.errors import InputError
from snip.common.places import is_folder
from snip.runs.config import RunConfig
from snip.runs.folder import FINISHED, state_of
from snip.runs.in_phases import FIRST, method_of
from snip.runs.listing import run_folders
from snip.runs.result import RunResult
from snip.runs.step_time import remembered_step_seconds

# All phases of a method that trains, over a dense training as long as its first, for as long as no
# run of the method is known: about as LeNet-300-100 took them on a busy machine
# (results/table1.json).
PHASES = {"lwc": 2.0, "dns": 4.0, "lc": 8.0, "sws": 16.0, "svd": 12.0, "obd": 2.0, "lobs": 2.0}
USUAL = 4.0  # of a method that is not in the table
# What the sparse engine saves of a dense step if nearly all connections are gone; of a network
# without a pruned run. bench/train.py measured 0.49 (WRN-16-8) to 0.89 (LeNet-300-100).
SAVED = 0.6
Points = list[tuple[float, float]]  # sparsity and seconds per image, in the order of sparsity


@dataclass
class Pace:
    """Seconds per training image of the runs that are known, and of dense steps."""

    known: list[tuple[RunConfig, float]] = field(default_factory=list)
    measured: dict[tuple[str, str], float] = field(default_factory=dict)

    @classmethod
    def of_folder(cls, root: Path) -> Pace:
        """What the finished runs in a folder of runs tell; files that are damaged tell nothing."""
        pace = cls()
        for folder in run_folders(root) if is_folder(root) else []:
            if state_of(folder) == FINISHED:
                with suppress(InputError):
                    pace.learn([RunResult.read(folder, verify=False)])
        return pace

    def learn(self, results: Iterable[RunResult]) -> None:
        """Note how long these runs took, without a first training that others share."""
        for result in results:
            phases = (cost["seconds"] for name, cost in result.cost.items() if name != FIRST)
            seconds = result.seconds + sum(phases)
            self.known.append((result.config, seconds / _images(result.config)))

    def measure(self, config: RunConfig) -> None:
        """Time a few dense steps of a network of which too little is known to tell this run's."""
        name, points = (config.model, config.dataset), self._points(config)
        told = points and (method_of(config) is not None or points[0][0] <= _sparsity(config))
        if name not in self.measured and not told:
            self.measured[name] = remembered_step_seconds(config) / config.training.batch_size

    def seconds(self, config: RunConfig) -> float | None:
        """About how long a run takes on a core of its own; None if nothing is known."""
        sparsity, points = _sparsity(config), self._points(config)
        dense = self.measured.get((config.model, config.dataset))
        method = method_of(config)
        if method is not None:
            guess = None if dense is None else dense * PHASES.get(method[0], USUAL)
            found = _between(points, sparsity) if points else guess
        else:
            if dense is not None and not (points and points[0][0] == 0):
                points = [(0.0, dense), *points]
            found = _told(points, sparsity)
        return None if found is None else found * _images(config)

    def _points(self, config: RunConfig) -> Points:
        """The fastest known run of each sparsity; a sparser network is no slower than a denser."""
        asked, best = _alike(config), dict[float, float]()
        for other, seconds in self.known:
            if _alike(other) == asked:
                sparsity = _sparsity(other)
                best[sparsity] = min(seconds, best.get(sparsity, seconds))
        points: Points = []
        for sparsity, seconds in sorted(best.items()):
            points.append((sparsity, min(seconds, points[-1][1] if points else seconds)))
        return points


def _told(points: Points, sparsity: float) -> float | None:
    """Seconds per image of a network pruned before training, or of the dense one."""
    if not points or (not sparsity and points[0][0]):  # pruned ones tell nothing of the dense one
        return None
    if len(points) == 1 and not points[0][0]:
        return points[0][1] * (1 - SAVED * sparsity)
    return _between(points, sparsity)


def _between(points: Points, sparsity: float) -> float:
    """On the straight line between the two neighbours; beyond the ends as there."""
    below = [point for point in points if point[0] <= sparsity]
    above = [point for point in points if point[0] > sparsity]
    if not below or not above:
        return below[-1][1] if below else above[0][1]
    (left, slow), (right, fast) = below[-1], above[0]
    return slow + (fast - slow) * (sparsity - left) / (right - left)


def _images(config: RunConfig) -> int:
    return config.training.iterations * config.training.batch_size


def _alike(config: RunConfig) -> tuple[str, str, str]:
    """Runs that are compared: of one network, and of one method if it trains by itself."""
    method = method_of(config)
    return config.model, config.dataset, "" if method is None else method[0]


def _sparsity(config: RunConfig) -> float:
    """What is left out while training: nothing by the dense engine."""
    return 0.0 if config.engine == "dense" else config.sparsity
