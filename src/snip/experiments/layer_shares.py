"""What SNIP keeps of each layer of the paper's architectures: they are scored, not trained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from snip.anatomy.parameters import is_weight
from snip.common.progress import track
from snip.data import DATASETS, load
from snip.data.locate import find
from snip.experiments.architectures import PRUNED, TABLE2, TABLEC
from snip.experiments.drawing import COLOURS, finish, new_figure, plain_axes
from snip.experiments.kinds import DATA_NOTES, Experiment, Record
from snip.masks import Masks
from snip.runs import RunConfig, prepare

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# What the paper's tables print as kept, by network and sparsity; both tables have the same count.
PAPER = {
    ("alexnet-s", 0.9): "507k", ("alexnet-b", 0.9): "849k",
    ("vgg-c", 0.95): "526k", ("vgg-d", 0.95): "762k",
    ("vgg-like", 0.97): "449k", ("vgg-like", 0.95): "749k",
    ("wrn-16-8", 0.95): "548k", ("wrn-16-10", 0.95): "856k", ("wrn-22-8", 0.95): "858k",
    ("lstm-s", 0.95): "6.8k", ("lstm-b", 0.95): "26.8k",
    ("gru-s", 0.95): "5.2k", ("gru-b", 0.95): "20.2k",
}  # fmt: skip
ACROSS = 5  # panels in a row of the figure


def measure(data_dir: Path | None, _scale: float) -> Record:
    """Score each pruned network of tables 2 and C, on the data that is here, with seed 0."""
    rows = [row for one in (TABLE2, TABLEC) for row in one.rows() if row.label == PRUNED]
    here = {name: find(spec, data_dir) is not None for name, spec in DATASETS.items()}
    configs = [row.at(0) for row in rows if here[row.config.dataset]]
    scored = track(configs, description="scoring networks", total=len(configs))
    networks = [_measured(config, data_dir) for config in scored]
    notes = sorted({found["note"] for found in networks} - {""})
    return {"networks": networks, "seeds": 1, DATA_NOTES: notes}


def _measured(config: RunConfig, data_dir: Path | None) -> Record:
    dataset = load(config.dataset, data_dir=data_dir)
    _, masks = prepare(config, dataset)
    assert masks is not None
    return {
        "model": config.model,
        "dataset": config.dataset,
        "note": dataset.note,
        "sparsity": config.sparsity,
        "images": config.score_batch_size,
        "kept": masks.kept,
        "total": masks.total,
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


def measured_table(measured: Record) -> tuple[list[str], list[list[str]]]:
    """A line per network: the counts beside the paper's, and the layers at both ends."""
    heading = [
        "network", "data set", "sparsity %", "connections", "kept", "paper kept", "biases kept",
        "densest weight", "sparsest weight", "weights emptied",
    ]  # fmt: skip
    return heading, [_cells(found) for found in measured["networks"]]


def _cells(found: Record) -> list[str]:
    ranked = sorted(found["weights"].items(), key=lambda item: item[1][0] / item[1][1])
    emptied = sum(kept == 0 for kept, _ in found["weights"].values())
    return [
        found["model"],
        found["dataset"],
        f"{100 * found['sparsity']:g}",
        f"{found['total']:,}",
        f"{found['kept']:,}",
        PAPER.get((found["model"], found["sparsity"]), "-"),
        f"{sum(kept for kept, _ in found['biases'].values()):,}",
        _share(*ranked[-1]),
        _share(*ranked[0]),
        f"{emptied} of {len(ranked)}",
    ]


def _share(name: str, counts: list[int]) -> str:
    kept, total = counts
    return f"{name} {100 * kept / total:.2g}%"


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
    said = "Points: the weights from input to output, seed 0. Line: the whole network."
    return finish(figure, record, said)


def _draw_panel(axes: Axes, found: Record) -> None:
    shares = [100 * kept / total for kept, total in found["weights"].values()]
    places = range(1, len(shares) + 1)
    axes.plot(places, shares, "o-", color=COLOURS[0], markersize=3, linewidth=1)
    axes.axhline(100 * found["kept"] / found["total"], color=COLOURS[1], linewidth=0.8)
    plain_axes(axes, f"{found['model']}, {found['dataset']}")
    # Linear below a tenth of a percent, so that an emptied weight has a place.
    axes.set_yscale("symlog", linthresh=0.1)
    axes.set_ylim(0, 130)
    axes.set_yticks([0, 0.1, 1, 10, 100], labels=["0", "0.1", "1", "10", "100"])


LAYERS = Experiment(
    "layers",
    "What SNIP keeps of each layer of the architectures of tables 2 and C",
    measure=measure,
    measured_table=measured_table,
    draw=draw,
    notes=(
        "Scored as the paper does, on one batch of 100 images (MNIST) or 128; weights and biases "
        "compete, and biases start at zero, so that none is kept",
        "The paper's 856k and 858k come out if batch norm is counted among the connections, and "
        "its counts for Tiny-ImageNet are those of CIFAR-10's ten classes",
    ),
)
