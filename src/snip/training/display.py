"""Progress of a training: a bar on a terminal, elsewhere a line every half minute."""

from __future__ import annotations

import sys
import time

from snip.common.console import BAR_EVERY, PATIENCE, TextBar
from snip.common.text import duration
from snip.training.metrics import Running

LINE_EVERY = 30.0


class Display(TextBar):
    """Shows loss, error, speed and time left; costs one clock reading per step."""

    def __init__(self, *, total: int, done: int = 0, enabled: bool = True) -> None:
        """Show the steps after number `done` of `total`."""
        super().__init__("training", total)
        self._first = done
        self._started = time.monotonic()
        self._on_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._enabled = enabled and sys.stderr is not None
        self._next = self._started + (PATIENCE if self._on_terminal else LINE_EVERY)

    def update(self, done: int, running: Running) -> None:
        """Show the state after step `done`, if it is time to."""
        now = time.monotonic()
        if now < self._next or not self._enabled:
            return
        text = summary(done, self._total, (done - self._first) / (now - self._started), running)
        if self._on_terminal:
            self.draw(done, text)
        else:
            sys.stderr.write(f"iteration {done}/{self._total}, {text}\n")
        self._next = time.monotonic() + (BAR_EVERY if self._on_terminal else LINE_EVERY)


def summary(done: int, total: int, rate: float, running: Running) -> str:
    """Loss, error, speed and time left in one line."""
    left = "?" if rate <= 0 else duration((total - done) / rate)
    return (
        f"loss {running.mean_loss:.4f}, error {running.error:.2%}, {rate:.1f} steps/s, {left} left"
    )
