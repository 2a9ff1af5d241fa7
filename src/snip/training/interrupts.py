"""Delay Ctrl-C, and a scheduler's order to end, until the training step is done and saved."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

# What each signal finds where nobody has set a handler. SIGHUP is unknown on Windows.
UNTOUCHED = {
    getattr(signal, name): handler
    for name, handler in (
        ("SIGINT", signal.default_int_handler),
        ("SIGTERM", signal.SIG_DFL),
        ("SIGHUP", signal.SIG_DFL),
    )
    if hasattr(signal, name)
}
# `timeout` and a closing terminal send their one signal twice, to a process and to its group.
ECHO_SECONDS = 0.5


def end_by(number: int) -> BaseException:
    """The exception that ends a program as the signal would, with all clean-up on the way."""
    # Shells call a death by a signal 128 + its number; Python does this for Ctrl-C by itself.
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)


def end_now(number: int, _frame: FrameType | None) -> None:
    """A handler that ends a program in order, for one that is to delay the signal in a training."""
    raise end_by(number)


@contextmanager
def signals_noted() -> Iterator[Callable[[], int | None]]:
    """Yields a function that returns the signal that asked to end, or None so far.

    A second signal ends at once.
    """
    # Only the main thread may set handlers, and a handler of the user's own is left alone.
    in_main = threading.current_thread() is threading.main_thread()
    now = {number: signal.getsignal(number) for number in UNTOUCHED}
    free = {n: handler for n, handler in now.items() if handler in (UNTOUCHED[n], end_now)}
    noted: int | None = None
    noted_at = 0.0

    def note(number: int, _frame: FrameType | None) -> None:
        nonlocal noted, noted_at
        echo = number == noted != signal.SIGINT and time.monotonic() - noted_at < ECHO_SECONDS
        if noted is not None and not echo:
            raise end_by(number)
        if noted is None:
            noted, noted_at = number, time.monotonic()

    for number in free if in_main else ():
        signal.signal(number, note)
    try:
        yield lambda: noted
    finally:
        for number, handler in free.items() if in_main else ():
            signal.signal(number, handler)
    if noted is not None:  # after the caller asked for the last time
        raise end_by(noted)
