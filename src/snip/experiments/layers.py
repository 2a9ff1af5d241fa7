"""What SNIP keeps of each layer of the paper's architectures: they are scored, not trained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from snip.common.console import track
from snip.data import load
from snip.data.dataset import Dataset
from snip.experiments.kinds import DATA_NOTES, Experiment, Record, Row
from snip.experiments.records.drawing import finish, new_figure, plain_axes
from snip.experiments.table2 import PAPER_KEPT, PRUNED, TABLE2, TABLEC
from snip.masks import Masks
from snip.network.layout import is_weight
from snip.reports.pictures import COLOURS
from snip.runs import prepare

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ACROSS = 5  # panels in a row of the figure
ROWS = [row for one in (TABLE2, TABLEC) for row in one.rows() if row.label == PRUNED]
SETS = tuple(dict.fromkeys(row.config.dataset for row in ROWS))


def measure(data_dir: Path | None, _seeds: int) -> Record:
    """Score each pruned network of tables 2 and C with seed 0; all of the data must be here."""
    data = {name: load(name, data_dir=data_dir) for name in SETS}
    scored = track(ROWS, description="scoring networks", total=len(ROWS))
    return {
        "networks": [measured(row, data[row.config.dataset]) for row in scored],
        "seeds": 1,
        DATA_NOTES: [f"{name}: {one.note}" for name, one in data.items() if one.note],
    }


def measured(row: Row, dataset: Dataset) -> Record:
    """What one pruned network keeps of its parameters, beside what the paper says of it."""
    config = row.at(0)
    _, masks = prepare(config, dataset)
    assert masks is not None
    return {
        "model": config.model,
        "dataset": config.dataset,
        "sparsity": config.sparsity,
        "images": config.score_batch_size,
        "kept": masks.kept,
        "total": masks.total,
        PAPER_KEPT: row.about[PAPER_KEPT],
        "weights": _counts(masks, weights=True),
        "biases": _counts(masks, weights=False),
    }


def _counts(masks: Masks, *, weights: bool) -> dict[str, list[int]]:
    """Kept and total of each weight, or of each bias."""
    return {
        name: [int(mask.count_nonzero()), mask.numel()]
        for name, mask in masks.items()
        if is_weight(mask.shape) == weights
    }


def measured_table(found: Record) -> tuple[list[str], list[list[str]]]:
    """A line per network: the counts beside the paper's, and the layers at both ends."""
    heading = [
        "network", "data set", "sparsity %", "connections", "kept", "paper kept", "biases kept",
        "densest weight", "sparsest weight", "weights emptied",
    ]  # fmt: skip
    return heading, [_cells(one) for one in found["networks"]]


def _cells(found: Record) -> list[str]:
    ranked = sorted(found["weights"].items(), key=lambda item: item[1][0] / item[1][1])
    emptied = sum(kept == 0 for kept, _ in found["weights"].values())
    return [
        found["model"],
        found["dataset"],
        f"{100 * found['sparsity']:g}",
        f"{found['total']:,}",
        f"{found['kept']:,}",
        found[PAPER_KEPT],
        f"{sum(kept for kept, _ in found['biases'].values()):,}",
        _share(*ranked[-1]),
        _share(*ranked[0]),
        f"{emptied} of {len(ranked)}",
    ]


def _share(name: str, counts: list[int]) -> str:
    kept, total = counts
    return f"{name} {100 * kept / total:.3g}%"


def draw(record: Record) -> Figure:
    """Percent kept of every weight, from input to output, a panel per network."""
    networks = record["measured"]["networks"]
    down = max(1, -(-len(networks) // ACROSS))
    figure = new_figure(12.0, 2.3 * down + 0.8)
    panels: Any = figure.subplots(down, ACROSS, squeeze=False, sharey=True)
    for axes in panels.flat[len(networks) :]:
        axes.set_visible(False)
    for axes, found in zip(panels.flat, networks, strict=False):
        _draw_panel(axes, found)
    figure.supylabel("kept of each weight, %", fontsize=9)
    said = "Across: the weights, numbered from input to output; seed 0. Line: the whole network."
    return finish(figure, record, said)


def _draw_panel(axes: Axes, found: Record) -> None:
    shares = [100 * kept / total for kept, total in found["weights"].values()]
    places = range(1, len(shares) + 1)
    axes.plot(places, shares, "o", color=COLOURS[0], markersize=3)
    axes.axhline(100 * found["kept"] / found["total"], color=COLOURS[1], linewidth=0.8)
    plain_axes(axes, f"{found['model']}, {found['dataset']}, {100 * found['sparsity']:g}%")
    # Linear below one percent, so that an emptied weight has a place.
    axes.set_yscale("symlog", linthresh=1, linscale=0.5)
    axes.set_ylim(0, 130)
    axes.set_yticks([0, 1, 10, 100], labels=["0", "1", "10", "100"])


LAYERS = Experiment(
    "layers",
    "What SNIP keeps of each layer of the architectures of tables 2 and C",
    measure=measure,
    datasets=SETS,
    measured_table=measured_table,
    draw=draw,
    notes=(
        "Scored as the paper does, on one batch of 100 images (MNIST) or 128; weights and biases "
        "compete, and biases start at zero, so that none is kept",
        "The paper's 856k and 858k come out if batch norm is counted among the connections, and "
        "its counts for Tiny-ImageNet are those of CIFAR-10's ten classes",
    ),
)
