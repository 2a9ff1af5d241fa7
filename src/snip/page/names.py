"""What a run is called on the page: short, and yet another name than every other run's there."""

from __future__ import annotations

from snip.common.errors import escaped, shortened
from snip.common.figures import short_percent
from snip.methods import training_method
from snip.page.finding import Run
from snip.runs import RunConfig
from snip.training.schedule import first_training, paper_schedule

LONGEST = 200  # characters of a name: one of a thousand would be all of the page
SEED = ("seed",)  # which every name ends with


def name_of(run: Run, differing: str = "") -> str:
    """A run's name; `differing` are the settings that tell it from others of the same look."""
    if run.config is None:
        return short(run.folder.resolve().name)
    parts = (look(run.config), differing, f"seed {run.config.seed}")
    return short(" · ".join(filter(None, parts)))


def look(config: RunConfig) -> str:
    """What everybody wants to know of a run."""
    redrawn = ["redraw"] if config.sparsity and config.protocol == "redraw" else []
    length = [f"{config.training.iterations:,} iterations"] if shortened_schedule(config) else []
    return " · ".join([config.model, config.dataset, pruned_by(config), *redrawn, *length])


def pruned_by(config: RunConfig) -> str:
    """How a run prunes, in a few words."""
    labels = "" if config.labels == "true" else f", {config.labels} labels"
    if not config.sparsity:
        return f"dense{labels}"
    control = "" if config.control == "none" else f", control {config.control}"
    return f"{config.method} {short_percent(config.sparsity)}{control}{labels}"


def shortened_schedule(config: RunConfig) -> bool:
    """Whether a run is shorter or longer than the paper's; methods that train have lengths of
    their own."""
    usual = first_training if config.sparsity and training_method(config.method) else paper_schedule
    return config.training.iterations != usual(config.dataset).iterations


def short(text: str) -> str:
    """A text of anybody's that does not take the page over."""
    return shortened(escaped(text), LONGEST)
