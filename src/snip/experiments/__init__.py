"""The paper's tables and figures by name. To add one, write a file here and a row below."""

from __future__ import annotations

from snip.common.errors import nearest
from snip.experiments.kinds import Experiment
from snip.experiments.methods import METHODS_EXPERIMENT
from snip.experiments.table1 import TABLE1

ALL = "all"
EXPERIMENTS: dict[str, Experiment] = {one.name: one for one in (TABLE1, METHODS_EXPERIMENT)}


def named_experiments(name: str) -> list[Experiment]:
    """The experiment of that name; of "all", every one."""
    if name == ALL:
        return list(EXPERIMENTS.values())
    if name not in EXPERIMENTS:
        raise nearest("experiment", name, (*EXPERIMENTS, ALL))
    return [EXPERIMENTS[name]]
