"""The paper's tables and figures by name. To add one, write a file here and a row below."""

from __future__ import annotations

from snip.common.errors import nearest
from snip.experiments.budgets import BUDGETS
from snip.experiments.fig1 import FIG1
from snip.experiments.fig2 import FIG2, FIGA1, FIGA2
from snip.experiments.fig3 import FIG3
from snip.experiments.fig4 import FIG4, FIGB
from snip.experiments.gap import GAP, GAP_CONV, GAP_RECURRENT, GAP_SWS
from snip.experiments.granularity import GRANULARITY
from snip.experiments.kinds import Experiment
from snip.experiments.layers import LAYERS
from snip.experiments.methods import METHODS_EXPERIMENT
from snip.experiments.table1 import TABLE1
from snip.experiments.table2 import TABLE2, TABLEC
from snip.experiments.table3 import TABLE3

ALL = "all"
# In the paper's order, and then our own questions.
_ROWS = (
    FIG1, TABLE1, TABLE2, FIG2, FIG3, TABLE3, FIG4, FIGA1, FIGA2, FIGB, TABLEC,
    LAYERS, METHODS_EXPERIMENT, GRANULARITY, GAP, GAP_CONV, GAP_RECURRENT, GAP_SWS, BUDGETS,
)  # fmt: skip
EXPERIMENTS: dict[str, Experiment] = {one.name: one for one in _ROWS}


def named_experiments(name: str) -> list[Experiment]:
    """The experiment of that name; of "all", every one."""
    if name == ALL:
        return list(EXPERIMENTS.values())
    if name not in EXPERIMENTS:  # figa1 means figA1
        name = next((one for one in EXPERIMENTS if one.lower() == name.lower()), name)
    if name not in EXPERIMENTS:
        raise nearest("experiment", name, (*EXPERIMENTS, ALL))
    return [EXPERIMENTS[name]]
