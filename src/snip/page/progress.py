"""How far a run has come and how long it took, as the page shows it. Unknown is empty."""

from __future__ import annotations

from snip.common.text import duration, escaped, percent
from snip.page.finding import Run
from snip.runs.folder import FINISHED
from snip.runs.listing import DAMAGED, RUNNING
from snip.training.metrics import selected


def phase(run: Run) -> str:
    """The training that a run is in before its own, of a method that trains; else nothing."""
    return "" if run.under_way is None else escaped(run.under_way.phase)


def fraction(run: Run) -> float:
    """How much of the run's own training is evaluated; nothing of it while a phase is under way."""
    if run.under_way is None or run.under_way.steps is None:
        return 0.0 if run.result is None else 1.0
    return min(run.under_way.done / max(run.under_way.steps, 1), 1.0)


def state(run: Run) -> str:
    """Finished, running, stopped or damaged, and how far the training under way has come."""
    if run.result is not None:
        return FINISHED
    return DAMAGED if run.under_way is None else escaped(run.under_way.progress)


def known_kept(run: Run) -> tuple[int | None, int | None]:
    """How many connections are kept, and of how many."""
    known = run.result or run.masks
    return (None, None) if known is None else (known.kept, known.total)


def known_error(run: Run) -> float | None:
    """The test error, as far as it is known."""
    if run.result is not None:
        return run.result.test_error
    return selected(run.history).test_error if run.history else None


def error(run: Run) -> str:
    """The test error in words."""
    known = known_error(run)
    if known is None:
        return ""
    return percent(known) if run.result is not None else f"{percent(known)} {_so_far(run)}"


def known_seconds(run: Run) -> float | None:
    """The time of the last training, or of the one under way."""
    if run.result is not None:
        return run.result.seconds
    return run.history[-1].seconds if run.history else None


def took(run: Run) -> str:
    """The same in words."""
    known = known_seconds(run)
    if known is None:
        return ""
    return duration(known) if run.result is not None else f"{duration(known)} {_so_far(run)}"


def _so_far(run: Run) -> str:
    return f"so far in {phase(run)}" if phase(run) else "so far"


def before(run: Run) -> str:
    """Of a method that prunes a trained network: the trainings before the last."""
    earlier = [] if run.result is None else list(run.result.cost.values())
    seconds = sum(cost.get("seconds", 0.0) for cost in earlier)
    return f"and {duration(seconds)} in the trainings before" if earlier else ""


def steps(run: Run) -> str:
    """Steps per second."""
    if run.result is not None:
        return f"{run.result.steps_per_second:,.1f}"
    if not run.history or run.config is None:
        return ""
    return f"{run.history[-1].images_per_second / run.config.training.batch_size:,.1f}"


def left(run: Run) -> str:
    """The time that a run which is at work still needs; a stopped one may never go on."""
    if run.under_way is None or run.under_way.state != RUNNING:
        return ""
    seconds = run.under_way.seconds_left
    return "" if seconds is None else duration(seconds)


def engine(run: Run) -> str:
    """Which engine runs, and why."""
    if run.result is not None:
        return run.result.engine_note
    asked = "" if run.config is None else f"{run.config.engine} was asked for"
    return f"{run.engine} ({asked})" if run.engine else asked
