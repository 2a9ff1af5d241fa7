"""What the paper says of a run, looked up in the rows of the experiments that reproduce it."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from snip.experiments.fig3 import FIG3
from snip.experiments.kinds import Row
from snip.experiments.table1 import TABLE1
from snip.experiments.table2 import TABLE2, TABLEC
from snip.experiments.table3 import TABLE3
from snip.runs import RunConfig
from snip.runs.config import TRUE
from snip.runs.settings import value_of

# What makes no other experiment of a run: its draw, and what computes it.
NOT_SETTINGS = ("seed", "engine")
# What figure 3 and table 3 vary: of one network and sparsity they print a number for each value.
VARIED = ("score_batch_size", "initializer")

Key = tuple[str, str, str, float]  # network, data set, method and sparsity


class PaperNumber(NamedTuple):
    """One error that the paper prints, and where.

    `differs` are the settings in which a run is not the row that reproduces it: its own value and
    the row's, by name. Without any it is the same experiment.
    """

    source: str
    printed: str  # percent, as the paper prints it
    std: float  # in percent, where the paper gives it
    experiment: str  # whose row reproduces it
    differs: dict[str, tuple[Any, Any]]
    marked: bool = True  # not where the row itself trains in another way than the paper


class PaperRow(NamedTuple):
    """A row with a number of the paper, its experiment, and where the paper has it."""

    experiment: str
    source: str
    row: Row


def paper_number(config: RunConfig) -> PaperNumber | None:
    """The paper's error of this network, data set, method and sparsity; None where it has none.

    It has none for sanity controls, for groups of connections and for random labels. A run with
    other settings, such as a shorter training, has one that says what differs.
    """
    if config.labels != TRUE:
        return None
    if config.sparsity and (config.control != "none" or config.granularity != "element"):
        return None
    alike = _known().get(_key(config), [])
    if len(alike) > 1:
        alike = [known for known in alike if _varied(known.row.config) == _varied(config)]
    if not alike:
        return None
    experiment, source, row = alike[0]
    differs = _differences(config, row.config)
    return PaperNumber(source, row.paper, row.paper_std, experiment, differs, row.marked)


@cache
def _known() -> dict[Key, list[PaperRow]]:
    """All rows with a number. Figure 1 has none of its own: it shows those of the others."""
    found: dict[Key, list[PaperRow]] = {}
    for experiment in (TABLE1, TABLE2, TABLEC, FIG3, TABLE3):
        source = experiment.title.partition(":")[0].partition(" on ")[0]
        for row in experiment.rows():
            found.setdefault(_key(row.config), []).append(PaperRow(experiment.name, source, row))
    return found


def _key(config: RunConfig) -> Key:
    method = config.method if config.sparsity else "dense"
    return config.model, config.dataset, method, round(config.sparsity, 3)


def _varied(config: RunConfig) -> tuple[Any, ...]:
    return tuple(getattr(config, name) for name in VARIED)


def _differences(config: RunConfig, row: RunConfig) -> dict[str, tuple[Any, Any]]:
    """The settings that tell a run's identity from the row's, with both values."""
    one, other = config.identity(), row.identity()
    names = [name for name in {**one, **other} if name not in NOT_SETTINGS]
    differing = [name for name in names if one.get(name) != other.get(name)]
    return {name: (value_of(config, name), value_of(row, name)) for name in differing}
