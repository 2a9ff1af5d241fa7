"""Runs on a Ray cluster: what `LocalWorkers` does, but on whichever machine has room.

All machines must see the same folder of runs under the same path, and have this package.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from snip.common.errors import InputError, imported
from snip.common.files import remove, write_json
from snip.common.text import first_line
from snip.experiments.sweep.work import FAILED, LOST, SAVING, Outcome, Place, Task, attempt
from snip.runs import RunConfig
from snip.runs.listing import CLUSTER

LOCAL, RAY, ADDRESS = "local", "ray", "ray://"
NOTED = 10.0  # seconds between two notes of a cluster's state in which nothing changes


def is_ray(on: str) -> bool:
    """Whether `--on` names Ray; anything but that and "local" is refused."""
    if on in (LOCAL, RAY):
        return on == RAY
    if on.startswith(ADDRESS) and len(on) > len(ADDRESS):
        return True
    raise InputError(
        f"--on is {on!r}: give {LOCAL}, {RAY} (a cluster of this machine alone, made for this "
        f"command) or {ADDRESS}HOST:PORT."
    )


@dataclass
class RayWorker:
    """One run at work on the cluster."""

    task: Task
    reference: Any


class RayWorkers:
    """Starts runs on a cluster, and collects their outcomes."""

    def __init__(self, on: str, jobs: int, place: Place) -> None:
        # Ray would otherwise tell its makers about every cluster.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if on == RAY:
            # A cluster of this machine alone, which nobody else is to reach: with this Ray listens
            # on the loopback address. It takes that address for its network's if asked by name.
            os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        self._ray = imported("ray", "running on a cluster", "ray")
        self._noted: tuple[int, int, float] = (-1, -1, 0.0)
        # Workers start in folders of their own.
        self._place = replace(place, out=place.out.resolve())
        if place.data_dir is not None:
            self._place = replace(self._place, data_dir=Path(place.data_dir).resolve())
        self._connect(on, jobs)
        # Ray would do a lost run again by itself, without a word: the pool does it, and says so.
        self._attempt = self._ray.remote(num_cpus=1, max_retries=0, max_calls=0)(_attempt)

    def start(self, task: Task) -> RayWorker:
        """Begin a run."""
        return RayWorker(task, self._attempt.remote(task.config.to_dict(), self._place))

    def wait(self, working: list[RayWorker], seconds: float) -> None:
        """Return when one of them may be done, or after so many seconds."""
        self._ray.wait([worker.reference for worker in working], timeout=seconds)

    def outcome(self, worker: RayWorker) -> Outcome | None:
        """How a run ended; None while it is at work."""
        done, _ = self._ray.wait([worker.reference], timeout=0)
        if not done:
            return None
        try:
            return self._ray.get(worker.reference)
        except self._ray.exceptions.RayTaskError as error:  # a fault of ours
            return Outcome(FAILED, first_line(error))
        except self._ray.exceptions.RayError as error:  # of the worker or its machine
            return Outcome(
                LOST, f"the worker of {worker.task.name} was lost ({type(error).__name__})"
            )

    def watched(self, at_work: int, waiting: int) -> None:
        """Note the cluster's state where `snip runs` finds it."""
        *counts, when = self._noted
        if counts == [at_work, waiting] and time.monotonic() < when + NOTED:
            return
        self._noted = at_work, waiting, time.monotonic()
        alive = [node for node in self._ray.nodes() if node["Alive"]]
        cpus = sum(node["Resources"].get("CPU", 0) for node in alive)
        state = {"nodes": len(alive), "cpus": int(cpus), "at_work": at_work, "waiting": waiting}
        write_json(self._place.out / CLUSTER, {**state, "time": time.time()})

    def stop(self, working: list[RayWorker]) -> None:
        """End the runs at work, which save first, and leave the cluster."""
        for worker in working:
            self._ray.cancel(worker.reference, force=False)
        if working:
            references = [worker.reference for worker in working]
            self._ray.wait(references, num_returns=len(references), timeout=SAVING)
        remove(self._place.out / CLUSTER)
        self._ray.shutdown()

    def _connect(self, on: str, jobs: int) -> None:
        settings = {"log_to_driver": False, "logging_level": "error", "include_dashboard": False}
        try:
            if on == RAY:
                self._ray.init(address=LOCAL, num_cpus=jobs, **settings)
            else:
                self._ray.init(address=on, log_to_driver=False, logging_level="error")
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            raise InputError(
                f"--on {on}: no cluster was reached ({first_line(error)}). `ray start --head` "
                f"starts one; --on {RAY} makes one here for this command."
            ) from error


def _attempt(config: dict[str, Any], place: Place) -> Outcome:
    import torch

    torch.set_num_threads(1)
    return attempt(RunConfig.from_dict(config), place)
