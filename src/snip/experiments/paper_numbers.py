"""What the paper says of a run, looked up in the rows of the experiments that reproduce it."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from snip.experiments.architectures import TABLE2, TABLEC
from snip.experiments.table1 import TABLE1
from snip.runs import RunConfig


class PaperNumber(NamedTuple):
    """One error that the paper prints, as a fraction, and where."""

    source: str
    error: float


def paper_number(config: RunConfig) -> PaperNumber | None:
    """The paper's error of this network, data set, method and sparsity; None where it has none.

    It has none for sanity controls and for groups of connections.
    """
    plain = config.control == "none" and config.granularity == "element"
    return _known().get(_key(config)) if plain or not config.sparsity else None


@cache
def _known() -> dict[tuple[str, str, str, float], PaperNumber]:
    """By network, data set, method and sparsity. Where two tables agree on a row, the first."""
    found: dict[tuple[str, str, str, float], PaperNumber] = {}
    for experiment in (TABLE1, TABLE2, TABLEC):
        source = experiment.title.partition(":")[0].partition(" on ")[0]
        for row in experiment.rows():
            error = PaperNumber(source, round(float(row.paper) / 100, 6))
            found.setdefault(_key(row.config), error)
    return found


def _key(config: RunConfig) -> tuple[str, str, str, float]:
    method = config.method if config.sparsity else "dense"
    return config.model, config.dataset, method, round(config.sparsity, 3)
