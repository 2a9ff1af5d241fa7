"""How far all runs of an experiment are: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from snip.common.console import TextBar, remark
from snip.common.errors import InputError
from snip.common.text import duration
from snip.experiments.sweep.order import together
from snip.runs.listing import Listed, listed
from snip.runs.pace import Pace

if TYPE_CHECKING:
    from snip.experiments.sweep.request import Request
    from snip.experiments.sweep.work import Task

LINE_EVERY = 60.0
BAR_EVERY = 2.0


class Progress(TextBar):
    """Shows runs done, runs at work and the time left."""

    def __init__(self, total: int, pace: Pace, request: Request) -> None:
        super().__init__("runs", total, width=20)
        self._pace, self._request, self._done = pace, request, 0
        self._terminal = sys.stderr is not None and sys.stderr.isatty()
        self._next = time.monotonic() + (0 if self._terminal else LINE_EVERY)

    def watch(self, working: Sequence[Task], waiting: Sequence[Task]) -> None:
        """Show the state, if it is time to."""
        if time.monotonic() < self._next:
            return
        left = len(working) + len(waiting)
        self._total = max(self._total, self._done + left)  # a first training may have come along
        self._done = self._total - left
        done = self._done
        text = self._text(working, waiting)
        if self._terminal:
            self.draw(done, text)
        else:
            remark(f"{done} of {self._total} runs are done; {text}")
        self._next = time.monotonic() + (BAR_EVERY if self._terminal else LINE_EVERY)

    def _text(self, working: Sequence[Task], waiting: Sequence[Task]) -> str:
        seen = [self._seen(task) for task in working]
        at_work = ", ".join(
            f"{task.label} seed {task.config.seed}{_share(run)}"
            for task, run in zip(working, seen, strict=True)
        )
        at_work = f"{at_work}; " if at_work else ""
        elsewhere = [f"{t.label} seed {t.config.seed}" for t in waiting if t.is_elsewhere]
        if elsewhere:
            more = f" and {len(elsewhere) - 1} more" if len(elsewhere) > 1 else ""
            at_work += f"another command is at {elsewhere[0]}{more}; "
        left = self._left([*zip(working, seen, strict=True), *((task, None) for task in waiting)])
        if left is None:
            return f"{at_work}time left not known yet"
        return f"{at_work}about {duration(together(left, self._request.jobs))} left"

    def _left(self, runs: Sequence[tuple[Task, Listed | None]]) -> list[float] | None:
        """Seconds that each run still takes; None if nothing is known of any.

        A run of which nothing is known counts as the mean of the others, from beginning to end.
        """
        whole, rest = list[float | None](), list[float | None]()
        for task, run in runs:
            left = None if run is None else run.seconds_left
            rest.append(left)
            if run is None or left is None:
                whole.append(self._pace.seconds(task.config))
            else:
                whole.append(run.seconds + left)
        known = [seconds for seconds in whole if seconds is not None]
        if not known:
            return None
        mean = sum(known) / len(known)
        usual = [mean if seconds is None else seconds for seconds in whole]
        return [a if left is None else left for a, left in zip(usual, rest, strict=True)]

    def _seen(self, task: Task) -> Listed | None:
        try:
            return listed(self._request.place.out / task.name)
        except InputError:  # it has not come to write anything yet
            return None


def _share(run: Listed | None) -> str:
    if run is None or not run.done:
        return ""
    return f" {run.done / run.steps:.0%}" if run.steps else f" ({run.phase})"
