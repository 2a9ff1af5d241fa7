"""Figures 2, A1 and A2: which first-layer connections survive if all images are of one class.

The figures are drawn, and what the paper says of them is measured (`map_measures`): whether the
class can be read back from a map, with its own labels and with wrong ones; whether plain and
inverted data, other sparsities and, for dL/dw, SNIP itself give the same maps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from snip.common.console import track
from snip.common.text import counted
from snip.data import Dataset, load
from snip.experiments.kinds import Experiment, Record
from snip.experiments.measures import map_measures as measures
from snip.experiments.measures.map_measures import Maps
from snip.experiments.measures.maps import class_means, packed, unpacked
from snip.experiments.records.drawing import finish, new_figure
from snip.reports.pictures import COLOUR_MAP
from snip.runs import RunConfig
from snip.runs.exploring import class_maps

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SETS = ("mnist", "fashion-mnist")
SPARSITIES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
IMAGES = 100  # of one class, that the scores come from
SEEDS = 5  # of weights and images; the figure shows the first
FEWEST = 2  # maps of one seed are held against those of another
PLAIN, INVERTED = "plain", "inverted"
SNIP = "snip"
# What a column of maps is called where its number says nothing.
CLASS_NAMES = {
    "fashion-mnist": (
        "T-shirt", "Trouser", "Pullover", "Dress", "Coat",
        "Sandal", "Shirt", "Sneaker", "Bag", "Boot",
    ),
}  # fmt: skip
WRONG_BY = 5  # the control calls every image of class 0 a 5, of class 1 a 6, and so on


def maps_of(dataset: Dataset, method: str, seed: int, wrong_by: int = 0) -> Maps:
    """The maps of every class at every sparsity, for one draw of weights and images."""
    # The sparsity is that of no map: all of them come from one scoring.
    config = RunConfig(
        "lenet-300-100", 0.5, dataset.name, method, score_batch_size=IMAGES, seed=seed
    )
    maps = class_maps(config, dataset, SPARSITIES, wrong_by=wrong_by)
    assert maps is not None  # this network's first layer reads whole images
    return maps.flatten(2)


def measure(method: str, shown: tuple[str, ...], data_dir: Path | None, seeds: int) -> Record:
    """Maps and measures on both data sets, plain and inverted."""
    found: Record = {"method": method, "shown": list(shown), "images": IMAGES, "seeds": seeds}
    for name in track(SETS, description="scoring", total=len(SETS)):
        maps = {
            kind: _of_all_seeds(name, kind, method, data_dir, seeds) for kind in (PLAIN, INVERTED)
        }
        means = class_means(name, data_dir)
        # Scores see pixels as the network does: standardised, and by their magnitude alone.
        average = float(_data(name, PLAIN, data_dir).mean)
        seen = {measures.MEAN: means, measures.MAGNITUDE: (means - average).abs()}
        lines = []
        for kind in shown:
            # SNIP's maps are held against those of wrong labels, those of other methods to SNIP's.
            wrong_by = WRONG_BY if method == SNIP else 0
            beside = _of_all_seeds(name, kind, SNIP, data_dir, seeds, wrong_by)
            lines += [_line(kind, i, maps, seen, beside, wrong_by) for i in range(len(SPARSITIES))]
        found[name] = {
            "maps": {kind: [[packed(m) for m in row] for row in maps[kind][0]] for kind in shown},
            "measures": lines,
            "steadiness": {kind: [measures.steadiness(m) for m in maps[kind]] for kind in shown},
        }
    return found


@cache
def _data(name: str, kind: str, data_dir: Path | None) -> Dataset:
    plain = load(name, data_dir=data_dir)
    return plain if kind == PLAIN else plain.inverted()


@cache  # the three figures look at the same maps, and `snip reproduce all` makes all three
def _of_all_seeds(
    name: str, kind: str, method: str, data_dir: Path | None, seeds: int, wrong_by: int = 0
) -> list[Maps]:
    data = _data(name, kind, data_dir)
    return [maps_of(data, method, seed, wrong_by) for seed in range(seeds)]


def _line(
    kind: str,
    index: int,
    maps: dict[str, list[Maps]],
    seen: dict[str, torch.Tensor],
    beside: list[Maps],
    wrong_by: int,
) -> Record:
    """What the maps of one kind of data show at one sparsity, over classes and seeds."""
    own = maps[kind]
    line = {"kind": kind, "sparsity": SPARSITIES[index]}
    line |= measures.beside_images(own, seen, index)
    if wrong_by:
        line |= measures.beside_wrong_labels(own, beside, seen[measures.MAGNITUDE], index)
    else:
        line[measures.WITH_SNIP] = measures.alike(own, beside, index)
    line[measures.BETWEEN_SEEDS] = measures.between_seeds(own, index)
    line[measures.WITH_HIGHEST] = measures.with_highest(own, index)
    return line | measures.beside_inverted(maps[PLAIN], maps[INVERTED], index)


def measured_table(measured: Record) -> tuple[list[str], list[list[str]]]:
    """A line per data set, kind and sparsity."""
    names = [name for name in measured["mnist"]["measures"][0] if name not in ("kind", "sparsity")]
    rows = [
        [
            called(name, line.get("kind", PLAIN)),  # without, it is of an older version
            f"{100 * line['sparsity']:g}",
            *(_cell(line[n]) for n in names),
        ]
        for name in SETS
        for line in measured[name]["measures"]
    ]
    return ["data set", "sparsity %", *names], rows


def called(dataset: str, kind: str) -> str:
    """A data set as it is, or inverted, in words."""
    return dataset if kind == PLAIN else f"{dataset}, inverted"


def _cell(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.3f}"


def unpack(record: Record) -> tuple[int, dict[tuple[str, str], torch.Tensor]]:
    """How many images, and the maps of each data set and kind, [classes, sparsities, 28, 28]."""
    measured = record.get("measured")
    if measured is None:
        return 0, {}
    shown = ((name, kind) for name in SETS for kind in measured["shown"])
    grids = {(name, kind): _grid(measured[name]["maps"][kind]) for name, kind in shown}
    return measured["images"], grids


def _grid(rows: list[list[str]]) -> torch.Tensor:
    """Maps as they were packed: a list of sparsities for every class."""
    maps = torch.stack([unpacked(text) for row in rows for text in row])
    return maps.view(len(rows), len(SPARSITIES), *maps.shape[1:])


def draw(record: Record) -> Figure:
    """Grids of maps: a class per column, a sparsity per row, a grid per data set and kind."""
    images, grids = unpack(record)
    across = 2
    down = -(-len(grids) // across)
    figure = new_figure(5.2 * across, 5.0 * down + 0.6)
    panels: Any = figure.subplots(down, across, squeeze=False)
    for axes, ((name, kind), maps) in zip(panels.flat, grids.items(), strict=True):
        drawn = _draw_grid(axes, maps)
        _name_classes(axes, name)
        axes.set_title(called(name, kind), fontsize=10, loc="left")
    if grids:
        key = figure.colorbar(drawn, ax=panels, fraction=0.02, pad=0.01, format="{x:.0%}")
        key.set_label("connections of the pixel that survive", fontsize=8)
        key.ax.tick_params(labelsize=8)
        key.outline.set_visible(False)
    return finish(figure, record, *_what_is_drawn(record, images))


def _draw_grid(axes: Any, maps: torch.Tensor) -> Any:
    """The maps of one data set and kind as one image, named by sparsity and number of the class."""
    columns = [torch.cat([_framed(picture) for picture in column]) for column in maps]
    drawn = axes.imshow(
        torch.cat(columns, 1), cmap=COLOUR_MAP, vmin=0, vmax=1, interpolation="nearest"
    )
    side = len(columns[0]) / len(SPARSITIES)
    places = [side * (index + 0.5) for index in range(max(maps.shape[:2]))]
    axes.set_xticks(places[: len(maps)], labels=range(len(maps)), fontsize=8)
    percents = [f"{100 * sparsity:g}%" for sparsity in SPARSITIES]
    axes.set_yticks(places[: len(SPARSITIES)], labels=percents, fontsize=8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("class of the images", fontsize=8)
    return drawn


def _name_classes(axes: Any, dataset: str) -> None:
    """Put names, which are wider than a map and therefore slanted, in the place of numbers."""
    if dataset in CLASS_NAMES:
        look = {"rotation": 45, "ha": "right", "va": "center", "rotation_mode": "anchor"}
        axes.set_xticks(axes.get_xticks(), labels=CLASS_NAMES[dataset], fontsize=7, **look)


def _what_is_drawn(record: Record, images: int) -> list[str]:
    """Sentences on the maps and on the measures, which are not of the same seeds."""
    maps = f"The maps drawn are of seed 0: lenet-300-100, {images} images of one class each."
    seeds = record.get("measured", {}).get("seeds")
    every = f"The measures in the table are over all {counted(seeds or 0, 'seed')}."
    return [maps, every] if seeds else [maps]


def _framed(picture: torch.Tensor) -> torch.Tensor:
    """A map with a gap to its neighbours."""
    return torch.nn.functional.pad(picture, (1, 1, 1, 1), value=float("nan"))


CONTROL = (
    "All labels wrong: the same images, each said to be of the class five further on. A class that "
    "is read back as well from these maps is read back from where its images differ from the mean "
    "pixel, not from what the task asks for",
)


def _experiment(name: str, title: str, method: str, *shown: str) -> Experiment:
    work: Callable[[Path | None, int], Record] = partial(measure, method, shown)
    return Experiment(
        name,
        title,
        seeds=SEEDS,
        notes=(
            "Measures: means over the classes and the seeds of weights and images. The mean: "
            "the class's mean training image. The magnitude: how far that is from the mean pixel "
            "of all images, which is what the network sees of it after standardisation. A class is "
            "read back as the one whose image correlates best with the map; by chance 0.1",
            *(CONTROL if method == SNIP else ()),
            "Correlation between seeds: of maps that differ in their draw of weights and images "
            "alone. Classes that inversion changes more than another seed: of 10, those whose "
            "plain and inverted maps are less alike than their maps of two seeds",
        ),
        measure=work,
        fewest_seeds=FEWEST,
        datasets=SETS,
        measured_table=measured_table,
        unpack=unpack,
        draw=draw,
    )


FIG2 = _experiment("fig2", "Figure 2: what survives, class by class (dL/dc)", SNIP, PLAIN)
FIGA1 = _experiment("figA1", "Figure A1: the same on inverted data (dL/dc)", SNIP, INVERTED)
FIGA2 = _experiment("figA2", "Figure A2: the same by dL/dw", "weight-gradient", PLAIN, INVERTED)
