"""How long runs take: learnt from finished ones, or from a few measured steps."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch

from snip.common.errors import InputError
from snip.common.places import is_folder
from snip.common.timing import best_time
from snip.models import IMAGES
from snip.runs.config import RunConfig
from snip.runs.folder import FINISHED, state_of
from snip.runs.in_phases import FIRST, method_of
from snip.runs.listing import run_folders
from snip.runs.result import RunResult
from snip.runs.run import draw
from snip.training import train_step
from snip.training.parts import make_optimizer, seeded

# All phases of a method that trains, over a dense training as long as its first; a guess for as
# long as no run of the method is known.
PHASES = 3.0


@dataclass
class Pace:
    """Seconds per step of the runs that are known."""

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
            steps = result.config.training.iterations
            self.known.append((result.config, (result.seconds + sum(phases)) / steps))

    def measure(self, config: RunConfig) -> None:
        """Time a few dense steps of a network of which no run is known."""
        name = (config.model, config.dataset)
        if name not in self.measured and self._nearest(config) is None:
            self.measured[name] = step_seconds(config)

    def seconds(self, config: RunConfig) -> float | None:
        """About how long a run takes; None if nothing is known of its network.

        Of a network without a pruned run this is the time of the dense one, which is longer.
        """
        found = self._nearest(config)
        if found is not None:
            return found * config.training.iterations
        per_step = self.measured.get((config.model, config.dataset))
        if per_step is None:
            return None
        times = 1.0 if method_of(config) is None else PHASES
        return per_step * times * config.training.iterations

    def _nearest(self, config: RunConfig) -> float | None:
        """Seconds per step of the known run that is most like this one."""
        kind = _kind(config)
        alike = [
            (abs(other.sparsity - config.sparsity), -index, seconds)
            for index, (other, seconds) in enumerate(self.known)
            if (other.model, other.dataset, _kind(other)) == (config.model, config.dataset, kind)
        ]
        return min(alike)[2] if alike else None


def step_seconds(config: RunConfig, device: str = "cpu") -> float:
    """Best time of a few dense training steps on random images."""
    images, train = IMAGES[config.dataset], config.training
    with seeded(config.seed, torch.device(device)):
        model = draw(config, device)[0].train()
        shape = (train.batch_size, images.channels, images.size, images.size)
        batch = torch.randn(shape, device=device)
        labels = torch.randint(images.classes, shape[:1], device=device)
        optimizer = make_optimizer(model, train)
        return best_time(lambda: train_step(model, optimizer, batch, labels), rounds=3)


def _kind(config: RunConfig) -> str:
    """Runs of one kind take the same time: dense ones, pruned before training, or by a method."""
    method = method_of(config)
    if method is not None:
        return method[0]
    return "pruned" if config.sparsity else "dense"
