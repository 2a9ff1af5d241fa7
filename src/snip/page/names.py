"""What a run is called on the page: short, and yet another name than every other run's there."""

from __future__ import annotations

from snip.common.text import escaped, short_percent, shortened
from snip.page.finding import Run
from snip.runs import RunConfig

LONGEST = 200  # characters of a text: one of a thousand would be all of the page
PART = 90  # of each of the parts of a name, so that none of them is cut off by another


def name_of(run: Run, differing: str = "") -> str:
    """A run's name; `differing` are the settings that tell it from others of the same look."""
    if run.config is None:
        return short(run.folder.resolve().name)
    parts = [short(part, PART) for part in (look(run.config), differing) if part]
    return " · ".join([*parts, f"seed {run.config.seed}"])


def look(config: RunConfig) -> str:
    """What everybody wants to know of a run."""
    redrawn = ["redraw"] if config.sparsity and config.protocol == "redraw" else []
    length = [f"{config.training.iterations:,} iterations"] if has_other_length(config) else []
    return " · ".join([config.model, config.dataset, pruned_by(config), *redrawn, *length])


def pruned_by(config: RunConfig) -> str:
    """How a run prunes, in a few words."""
    labels = "" if config.labels == "true" else f", {config.labels} labels"
    if not config.sparsity:
        return f"dense{labels}"
    whole = "" if config.granularity == "element" else f", {config.granularity}"
    control = "" if config.control == "none" else f", control {config.control}"
    return f"{config.method} {short_percent(config.sparsity)}{whole}{control}{labels}"


def has_other_length(config: RunConfig) -> bool:
    """Whether a run is shorter or longer than usual for its data and method."""
    return config.training.iterations != config.usual_training.iterations


def short(text: str, longest: int = LONGEST) -> str:
    """A text of anybody's that does not take the page over."""
    return shortened(escaped(text), longest)
