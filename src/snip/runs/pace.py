"""How long runs take: learnt from finished ones, or from a few measured steps.

A run takes longer while others compute on the same machine, and never less: of runs that are alike
the fastest tells how long one takes on a core of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from snip.common.errors import InputError
from snip.common.files import is_folder
from snip.data import DATASETS
from snip.runs.config import RunConfig
from snip.runs.folder import FINISHED, state_of
from snip.runs.in_phases import FIRST, method_of
from snip.runs.listing import run_folders
from snip.runs.result import RunResult
from snip.runs.step_time import remembered_step_seconds
from snip.training.schedule import epoch_iterations

# All phases of a method that trains, over a dense training as long as its first, for as long as no
# run of the method is known: about as LeNet-300-100 took them on a busy machine
# (results/table1.json).
PHASES = {"lwc": 2.0, "dns": 4.0, "lc": 8.0, "sws": 16.0, "svd": 12.0, "obd": 2.0, "lobs": 2.0}
USUAL = 4.0  # of a method that is not in the table
# Where no run tells, a pruned network's step takes as long as the dense one up to a sparsity of
# GAINS, and from there on falls as the share of connections that is kept to this power. Fitted to
# steps measured on one core: within 12% for LeNet-5-Caffe from 50 to 99%; 1.2 to 1.9 times too long
# for LSTM-s, LSTM-b and GRU-b at 95%, 3.3 times for LeNet-300-100 at 90 and 95%; 1.6 times too
# short for VGG-like at 97%, WRN-16-8 at 95%.
POWER, GAINS = 0.4, 0.2
# A run tells nothing of one that is more than so many times as long: the first steps are slower.
LONGEST = 10
# An evaluation runs the images that are held out and those of the test part, about a sixth of the
# training part, forward: a third of a training step's work.
TEST_PART, FORWARD = 1 / 6, 1 / 3
Points = list[tuple[float, float]]  # sparsity and seconds, in the order of sparsity


class Spent(NamedTuple):
    """What a finished run took, with its evaluations apart: trials have more of them to a step."""

    config: RunConfig
    images: int
    per_image: float  # seconds of its steps
    per_evaluation: float  # seconds between its steps


@dataclass
class Pace:
    """What the runs took that are known, and seconds per image of dense steps."""

    known: list[Spent] = field(default_factory=list)
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
            config, pace = result.config, max(result.steps_per_second, 1e-9)
            last = min(config.last_training.iterations / pace, result.seconds)
            phases = (cost for name, cost in result.cost.items() if name != FIRST)
            steps = last + sum(cost.get("seconds", 0.0) for cost in phases)
            if steps > 0:  # by hand a result can be made to say anything
                images, each = _images(config), (result.seconds - last) / _evaluations(config)
                self.known.append(Spent(config, images, steps / images, each))

    def measure(self, config: RunConfig) -> None:
        """Time a few dense steps of a network of which too little is known to tell this run's."""
        name, points = (config.model, config.dataset), self._points(config)
        told = points and (method_of(config) is not None or points[0][0] <= _sparsity(config))
        if name not in self.measured and not told:
            self.measured[name] = remembered_step_seconds(config) / config.training.batch_size

    def seconds(self, config: RunConfig) -> float | None:
        """About how long a run takes on a core of its own; None if nothing is known."""
        sparsity, points = _sparsity(config), self._points(config)
        per_image = self.measured.get((config.model, config.dataset))
        dense = None if per_image is None else per_image * _work(config)
        method = method_of(config)
        if method is not None:
            guess = None if dense is None else dense * PHASES.get(method[0], USUAL)
            return _between(points, sparsity, power=0) if points else guess
        if dense is not None and not (points and points[0][0] == 0):
            points = [(0.0, dense), *points]
        if not points or (not sparsity and points[0][0]):  # pruned ones tell nothing of the dense
            return None
        return _between(points, sparsity, power=POWER)

    def _points(self, config: RunConfig) -> Points:
        """How long this run takes by the fastest of each sparsity that is long enough to tell.

        A sparser network is no slower than a denser one.
        """
        asked, best = _alike(config), dict[float, float]()
        images, evaluations = _images(config), _evaluations(config)
        for other in self.known:
            if _alike(other.config) == asked and images <= LONGEST * other.images:
                sparsity = _sparsity(other.config)
                seconds = images * other.per_image + evaluations * other.per_evaluation
                best[sparsity] = min(seconds, best.get(sparsity, seconds))
        points: Points = []
        for sparsity, seconds in sorted(best.items()):
            points.append((sparsity, min(seconds, points[-1][1] if points else seconds)))
        return points


def _between(points: Points, sparsity: float, *, power: float) -> float:
    """Seconds of a run, which fall as a power of the share of connections that is kept.

    Between two neighbours it is the power that leads from one to the other, beyond the sparsest it
    is `power`, for networks that are sparse enough to gain. A denser network than all that are
    known is taken to be as fast as the densest.
    """
    below = [point for point in points if point[0] <= sparsity]
    above = [point for point in points if point[0] > sparsity]
    if not below:
        return above[0][1]
    left, slow = below[-1]
    if above:
        right, fast = above[0]
        power = math.log(slow / fast) / (math.log1p(-left) - math.log1p(-right))
    else:
        left, sparsity = max(left, GAINS), max(sparsity, GAINS)
    return slow * math.exp(power * (math.log1p(-sparsity) - math.log1p(-left)))


def _images(config: RunConfig) -> int:
    return config.training.iterations * config.training.batch_size


def _work(config: RunConfig) -> float:
    """Images of all steps, and of the evaluations by what they take of a step's work."""
    return _images(config) + _evaluations(config) * evaluation_work(config)


def evaluation_work(config: RunConfig) -> float:
    """How many images of training steps take as long as one evaluation."""
    held_out = TEST_PART + config.training.validation
    return DATASETS[config.dataset].most * held_out * FORWARD


def _evaluations(config: RunConfig) -> int:
    train = config.training
    every = train.eval_every or epoch_iterations(config.dataset, train)
    return -(-train.iterations // every)


def _alike(config: RunConfig) -> tuple[str, str, str]:
    """Runs that are compared: of one network, and of one method if it trains by itself."""
    method = method_of(config)
    return config.model, config.dataset, "" if method is None else method[0]


def _sparsity(config: RunConfig) -> float:
    """What is left out while training: nothing by the dense engine."""
    return 0.0 if config.engine == "dense" else config.sparsity
