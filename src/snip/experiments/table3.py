"""Table 3: the initialiser of the scored weights, at 90%."""

from __future__ import annotations

from snip.experiments.kinds import HELD_OUT, Experiment, Row
from snip.runs import RunConfig
from snip.training import paper_schedule

# For each network and initialiser the paper's error and its standard deviation over 20 seeds.
PAPER = {
    "lenet-300-100": {
        "rn": ("1.90", 0.09), "tn": ("1.96", 0.11), "vs-x": ("1.91", 0.10), "vs-h": ("1.88", 0.10),
    },
    "lenet-5-caffe": {
        "rn": ("0.89", 0.04), "tn": ("0.87", 0.05), "vs-x": ("0.88", 0.07), "vs-h": ("0.85", 0.05),
    },
    "lstm-s": {
        "rn": ("2.93", 0.20), "tn": ("3.03", 0.17), "vs-x": ("1.48", 0.09), "vs-h": ("1.47", 0.08),
    },
    "gru-s": {
        "rn": ("47.61", 20.49), "tn": ("46.48", 22.25), "vs-x": ("1.80", 0.10),
        "vs-h": ("1.80", 0.14),
    },
}  # fmt: skip


def rows() -> list[Row]:
    """Scored with each initialiser; the trained weights are always drawn by VS-X."""
    train = paper_schedule("mnist").with_optimizer("adam")
    return [
        Row(
            initializer.upper(),
            RunConfig(
                model,
                0.9,
                protocol="redraw",
                initializer=initializer,
                train_initializer="vs-x",
                train=train,
            ),
            *paper,
        )
        for model, papers in PAPER.items()
        for initializer, paper in papers.items()
    ]


TABLE3 = Experiment(
    "table3",
    "Table 3: the initialiser of the scored weights, 90%, MNIST",
    rows,
    seeds=20,
    notes=(
        "Adam at 1e-3 without decay, with the drops of the paper's schedule; trained weights are "
        "drawn by VS-X",
        HELD_OUT,
    ),
)
