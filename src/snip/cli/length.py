"""How long a user's own network trains when no flag says so: asked for, or short.

The paper's schedules take hours for a network of any size. Every answer is a plain number of
iterations in the run's configuration, so that a resumed run has nothing to ask or to time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from snip.common.console import remark
from snip.common.errors import InputError
from snip.network.network import Network
from snip.runs import RunConfig, resolve_model
from snip.runs.folder import NEW, read_config, state_of
from snip.runs.step_time import step_seconds

# Epochs that are offered, the most that fit into PATIENCE; without a terminal it is the first.
OFFERED = (10, 3, 1)
PATIENCE = 600.0  # seconds that a training may take without a question
ALL = "all"
Lengthen = Callable[[int], RunConfig]  # from a number of epochs to the configuration


def chosen_length(
    whole: RunConfig,
    with_epochs: Lengthen,
    place_of: Callable[[RunConfig], Path],
    *,
    device: str,
    may_ask: bool,
) -> RunConfig:
    """The configuration to run in place of the `whole` schedule: one that was begun, or chosen."""
    model = resolve_model(whole.model, whole.dataset)
    if whole.sparsity:
        # What would be refused later is refused before any question.
        Network.of(model).require_competing()
    for config in (whole, *map(with_epochs, OFFERED)):
        if _begun(config, place_of(config)):
            return config
    if not (may_ask and _on_terminal()):
        config = with_epochs(OFFERED[0])
        remark(
            f"note: {OFFERED[0]} epochs ({config.training.iterations:,} iterations), because this "
            f"is a network of your own and no flag says how long; --epochs N changes it, "
            f"--schedule paper trains for the paper's {whole.training.iterations:,} iterations."
        )
        return config
    seconds = step_seconds(whole, device)
    if seconds * whole.training.iterations <= PATIENCE:
        return whole
    return _asked(whole, with_epochs, seconds)


def _asked(whole: RunConfig, with_epochs: Lengthen, seconds: float) -> RunConfig:
    """Ask until there is an answer that can be understood."""

    def told(config: RunConfig) -> str:
        count = config.training.iterations
        return f"{count:,} iterations, {spoken(seconds * count)}"

    fitting = (n for n in OFFERED if seconds * with_epochs(n).training.iterations <= PATIENCE)
    offered = next(fitting, OFFERED[-1])
    remark(
        f"The paper's schedule: {told(whole)} if dense. Shorter: {offered} epochs, "
        f"{told(with_epochs(offered))}."
    )
    while True:
        sys.stderr.write(f"Epochs to train [{offered}; {ALL} = the paper's schedule]: ")
        sys.stderr.flush()
        answer = sys.stdin.readline().strip().lower()
        if answer == ALL:
            return whole
        try:
            config = with_epochs(int(answer) if answer else offered)
        except (InputError, ValueError):
            remark(f"{answer!r} is no number of epochs.")
            continue
        remark(f"{told(config)}; without the question: --iterations {config.training.iterations}")
        return config


def spoken(seconds: float) -> str:
    """A length of time in words, to the minute."""
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours:
        return f"about {hours:,} h {minutes} min"
    return f"about {minutes} min" if minutes else "under a minute"


def _begun(config: RunConfig, place: Path) -> bool:
    """Whether the folder holds this very run, so that there is nothing to choose."""
    return state_of(place) != NEW and read_config(place).identity() == config.identity()


def _on_terminal() -> bool:
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))
