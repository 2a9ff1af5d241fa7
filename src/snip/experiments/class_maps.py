"""Figures 2, A1 and A2: which first-layer connections survive if all images are of one class.

The figures are drawn, and what the paper says of them is measured: how like the class's mean image
a map is, whether the class can be read back from it, whether plain and inverted data agree.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from snip.common.progress import track
from snip.data import Dataset, load
from snip.experiments.drawing import finish, new_figure
from snip.experiments.kinds import Experiment, Record
from snip.experiments.maps import class_means, correlation, packed, unpacked
from snip.reports.pictures import COLOURS as COLOUR_MAP
from snip.runs import RunConfig
from snip.runs.exploring import class_maps

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SETS = ("mnist", "fashion-mnist")
SPARSITIES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
IMAGES = 100  # of one class, that the scores come from
SEEDS = 5  # of weights and images; the figure shows the first
PLAIN, INVERTED = "plain", "inverted"
MEAN, MAGNITUDE = "the mean", "the magnitude"
Maps = torch.Tensor  # [classes, sparsities, pixels]


def maps_of(dataset: Dataset, method: str, seed: int) -> Maps:
    """The maps of every class at every sparsity, for one draw of weights and images."""
    # The sparsity is that of no map: all of them come from one scoring.
    config = RunConfig(
        "lenet-300-100", 0.5, dataset.name, method, score_batch_size=IMAGES, seed=seed
    )
    maps = class_maps(config, dataset, SPARSITIES)
    assert maps is not None  # this network's first layer reads whole images
    return maps.flatten(2)


def measure(method: str, shown: tuple[str, ...], data_dir: Path | None, _scale: float) -> Record:
    """Maps and measures on both data sets, plain and inverted."""
    found: Record = {"method": method, "shown": list(shown), "images": IMAGES, "seeds": SEEDS}
    for name in track(SETS, description="scoring", total=len(SETS)):
        plain = load(name, data_dir=data_dir)
        sets = {PLAIN: plain, INVERTED: plain.inverted()}
        maps = {
            kind: [maps_of(data, method, seed) for seed in range(SEEDS)]
            for kind, data in sets.items()
        }
        means = class_means(name, data_dir)
        # Scores see pixels as the network does: standardised, and by their magnitude alone.
        seen = {MEAN: means, MAGNITUDE: (means - float(plain.mean)).abs()}
        found[name] = {
            "maps": {kind: [[packed(m) for m in row] for row in maps[kind][0]] for kind in shown},
            "measures": [_measures(maps, seen, shown, i) for i in range(len(SPARSITIES))],
        }
    return found


def _measures(
    maps: dict[str, list[Maps]], seen: dict[str, torch.Tensor], shown: tuple[str, ...], index: int
) -> Record:
    """What the maps at one sparsity show, in the mean over classes and seeds."""
    found: Record = {"sparsity": SPARSITIES[index]}
    classes = range(len(seen[MEAN]))
    for kind in shown:
        pairs = [(number, one[number, index]) for one in maps[kind] for number in classes]
        for what, images in seen.items():
            found[f"{kind}: correlation with {what}"] = statistics.mean(
                correlation(survivors, images[number]) for number, survivors in pairs
            )
            found[f"{kind}: class read back by {what}"] = statistics.mean(
                float(_read_back(survivors, images) == number) for number, survivors in pairs
            )
    both = zip(maps[PLAIN], maps[INVERTED], strict=True)
    found["correlation of plain and inverted"] = statistics.mean(
        correlation(one[number, index], other[number, index])
        for one, other in both
        for number in classes
    )
    return found


def _read_back(survivors: torch.Tensor, images: torch.Tensor) -> int:
    """The class whose image is most like the map."""
    likeness = [correlation(survivors, image) for image in images]
    return likeness.index(max(likeness))


def measured_table(measured: Record) -> tuple[list[str], list[list[str]]]:
    """A line per data set and sparsity."""
    names = [name for name in measured["mnist"]["measures"][0] if name != "sparsity"]
    rows = [
        [name, f"{100 * found['sparsity']:g}", *(f"{found[what]:.3f}" for what in names)]
        for name in SETS
        for found in measured[name]["measures"]
    ]
    return ["data set", "sparsity %", *names], rows


def draw(record: Record) -> Figure:
    """Grids of maps: a class per column, a sparsity per row, a grid per data set and kind."""
    measured = record["measured"]
    grids = [(kind, name) for name in SETS for kind in measured["shown"]]
    across = 2
    down = -(-len(grids) // across)
    figure = new_figure(5.2 * across, 5.0 * down + 0.6)
    panels: Any = figure.subplots(down, across, squeeze=False)
    for axes, (kind, name) in zip(panels.flat, grids, strict=True):
        rows = measured[name]["maps"][kind]
        columns = [torch.cat([_framed(unpacked(text)) for text in row]) for row in rows]
        axes.imshow(torch.cat(columns, 1), cmap=COLOUR_MAP, vmin=0, vmax=1, interpolation="nearest")
        side = len(columns[0]) / len(SPARSITIES)
        places = [side * (index + 0.5) for index in range(len(rows))]
        axes.set_xticks(places, labels=range(len(rows)), fontsize=8)
        percents = [f"{100 * sparsity:g}%" for sparsity in SPARSITIES]
        axes.set_yticks(places[: len(SPARSITIES)], labels=percents, fontsize=8)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_title(name if kind == PLAIN else f"{name}, inverted", fontsize=10, loc="left")
        axes.set_xlabel("class of the images", fontsize=8)
    said = f"lenet-300-100, {measured['images']} images of one class, seed 0."
    return finish(figure, record, said, "Bright: connections of the pixel that survive.")


def _framed(picture: torch.Tensor) -> torch.Tensor:
    """A map with a gap to its neighbours."""
    return torch.nn.functional.pad(picture, (1, 1, 1, 1), value=float("nan"))


def _experiment(name: str, title: str, method: str, *shown: str) -> Experiment:
    work: Callable[[Path | None, float], Record] = partial(measure, method, shown)
    return Experiment(
        name,
        title,
        notes=(
            f"Measures: means over the classes and {SEEDS} seeds of weights and images. The mean: "
            "the class's mean training image. The magnitude: how far that is from the mean pixel "
            "of all images, which is what the network sees of it after standardisation. A class is "
            "read back as the one whose image correlates best with the map; by chance 0.1",
        ),
        measure=work,
        measured_table=measured_table,
        draw=draw,
    )


FIG2 = _experiment("fig2", "Figure 2: what survives, class by class (dL/dc)", "snip", PLAIN)
FIGA1 = _experiment("figA1", "Figure A1: the same on inverted data (dL/dc)", "snip", INVERTED)
FIGA2 = _experiment("figA2", "Figure A2: the same by dL/dw", "weight-gradient", PLAIN, INVERTED)
