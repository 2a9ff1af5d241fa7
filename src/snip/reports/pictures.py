"""Pictures: which weights survive, what a layer looks at, curves over sparsity."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from snip.common.errors import InputError
from snip.common.files import PathLike, write_with
from snip.masks import Masks
from snip.network.layout import is_weight

FORMATS = (".png", ".svg", ".pdf")
BLUE, ORANGE, INK, PALE = "#0072b2", "#d55e00", "#222222", "#e6e6e6"  # Okabe-Ito, safe for all eyes
COLOUR_MAP = "cividis"  # its order of brightness survives every kind of colour blindness


def survivors(
    masks: Mapping[str, torch.Tensor],
    path: PathLike,
    *,
    image_shape: tuple[int, int, int] | None = None,
    title: str | None = None,
) -> None:
    """Draw the masks to a PNG (or SVG, PDF): density per layer, and what the first layer sees.

    `image_shape` is (channels, height, width) of the input; masks of `snip.prune` remember it.
    """
    require_format(Path(path))
    weights = {name: mask for name, mask in masks.items() if is_weight(mask.shape)} or dict(masks)
    if not weights:
        raise InputError("there are no masks to draw.")
    figure = _figure(masks, weights, image_shape, title)
    save(figure, path)


def require_format(path: Path) -> None:
    """Refuse the name of a picture that cannot be drawn."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"cannot draw {path}: end its name in one of {', '.join(FORMATS)}.")


def as_written(text: str) -> str:
    """A name of the user's as it must be given to matplotlib, which reads formulas between $."""
    return text.replace("$", r"\$")


def save(figure: Any, path: PathLike) -> None:
    """Write a figure in the format that the name ends in."""
    from matplotlib import rc_context

    kind = Path(path).suffix.lower().removeprefix(".")
    # Without the software's name and date, and with fixed ids, the same content gives the same
    # file.
    extra: dict[str, Any] = {"png": {"Software": None}, "svg": {"Date": None}}
    metadata = extra.get(kind, {"CreationDate": None})
    with rc_context({"svg.hashsalt": "snip"}):
        write_with(path, lambda file: figure.savefig(file, format=kind, metadata=metadata))


def _figure(
    masks: Mapping[str, torch.Tensor],
    weights: dict[str, torch.Tensor],
    image_shape: tuple[int, int, int] | None,
    title: str | None,
) -> Any:
    # A Figure of our own: pyplot and its global state are never touched.
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    first_name, first = next(iter(weights.items()))
    shape = image_shape or _remembered_shape(masks)
    view = pixels(first, shape) if first.ndim == 2 else filters(first)
    height = max(4.0, 0.3 * len(weights) + 1.6)
    figure = Figure(
        figsize=(10.0 if view is not None else 7.0, height),
        dpi=150,
        facecolor="white",
        layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1, wspace=0.04),
    )
    figure.suptitle(as_written(title or _title(masks)), color=INK, fontsize=13, fontweight="bold")
    if view is None:
        _draw_densities(figure.subplots(), masks, weights)
        return figure
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.25))
    if first.ndim == 2:
        _draw_pixels(left, view, first_name)
    else:
        _draw_filters(left, view, first_name, first.shape[1])
    left.set_anchor("N")
    _draw_densities(right, masks, weights)
    return figure


def _title(masks: Mapping[str, torch.Tensor]) -> str:
    kept, total = _count(masks)
    return f"What survived: {kept:,} of {total:,} connections ({kept / max(total, 1):.2%})"


def _remembered_shape(masks: Mapping[str, torch.Tensor]) -> tuple[int, ...] | None:
    return masks.provenance.input_shape if isinstance(masks, Masks) else None


def _draw_pixels(axes: Any, counts: torch.Tensor, name: str) -> None:
    image = axes.imshow(counts.numpy(), cmap=COLOUR_MAP, vmin=0, interpolation="nearest")
    unseen = int((counts == 0).sum())
    _heading(axes, f"{as_written(name)}: {unseen:,} of {counts.numel():,} pixels are not looked at")
    axes.set_xlabel("column", fontsize=9)
    axes.set_ylabel("row", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.locator_params(integer=True)
    _colour_bar(axes, image, "connections kept per pixel")


def _draw_filters(axes: Any, counts: torch.Tensor, name: str, channels: int) -> None:
    """All filters as tiles with a gap between them."""
    from matplotlib import colormaps

    image = axes.imshow(
        tiled(counts).numpy(),
        cmap=colormaps[COLOUR_MAP].resampled(channels + 1),  # one colour per count
        vmin=-0.5,
        vmax=channels + 0.5,
        interpolation="nearest",
    )
    empty = int((counts.flatten(1).sum(1) == 0).sum())
    _heading(axes, f"{as_written(name)}: {empty} of {len(counts)} filters are empty")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    bar = _colour_bar(axes, image, f"channels kept per position (of {channels})")
    if channels == 1:
        bar.set_ticks([0, 1], labels=["pruned", "kept"])
        bar.set_label("")
    elif channels <= 8:
        bar.set_ticks(range(channels + 1))


def _colour_bar(axes: Any, image: Any, label: str) -> Any:
    """As high as the picture it belongs to, close beside it."""
    from matplotlib.ticker import MaxNLocator

    place = axes.inset_axes((1.04, 0, 0.04, 1))
    whole = MaxNLocator(7, integer=True, steps=[1, 2, 5, 10])
    bar = axes.figure.colorbar(image, cax=place, ticks=whole)
    bar.set_label(label, fontsize=9)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8, length=2)
    return bar


def _draw_densities(
    axes: Any, masks: Mapping[str, torch.Tensor], weights: dict[str, torch.Tensor]
) -> None:
    """One bar per weight on a logarithmic axis, with the counts written out."""
    counts = [_count({name: mask}) for name, mask in weights.items()]
    density = [100 * kept / max(total, 1) for kept, total in counts]
    smallest = min((value for value in density if value), default=100.0)
    floor = 10 ** math.floor(math.log10(smallest) - 0.3)
    places = range(len(weights))
    axes.barh(places, [100 - floor] * len(counts), left=floor, color=PALE, height=0.6, zorder=1)
    axes.barh(
        places, [max(d - floor, 0) for d in density], left=floor, color=BLUE, height=0.6, zorder=2
    )
    for place, (kept, total), value in zip(places, counts, density, strict=True):
        text = f"{kept:,} of {total:,}" if kept else "nothing left"
        colour = INK if value else ORANGE
        beside = axes.get_yaxis_transform()  # across: fractions of the panel, down: layers
        axes.text(1.03, place, text, va="center", fontsize=8, color=colour, transform=beside)
    _draw_average(axes, masks)
    axes.set_xscale("log")
    axes.set_xlim(floor, 100)
    axes.set_ylim(len(weights) - 0.4, -0.9)
    axes.set_yticks(list(places), labels=[as_written(name) for name in weights], fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=8)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}%")
    axes.set_xlabel("share of the layer's connections kept (logarithmic)", fontsize=9)
    _heading(axes, "Density per layer")
    axes.spines[["top", "right", "left"]].set_visible(False)


def _draw_average(axes: Any, masks: Mapping[str, torch.Tensor]) -> None:
    kept, total = _count(masks)
    if kept:
        whole = 100 * kept / total
        axes.axvline(whole, color=ORANGE, linewidth=1.2, linestyle=(0, (4, 2)), zorder=3)
        # On the side of the line where there is room.
        side, space = ("right", "{} ") if whole > 30 else ("left", " {}")
        text = space.format(f"whole network {whole:.3g}%")
        axes.text(whole, -0.55, text, color=ORANGE, fontsize=8, va="center", ha=side, zorder=4)


def _heading(axes: Any, text: str) -> None:
    axes.set_title(text, fontsize=10, color=INK, loc="left")


def _count(masks: Mapping[str, torch.Tensor]) -> tuple[int, int]:
    return sum(int(m.sum()) for m in masks.values()), sum(m.numel() for m in masks.values())


# Okabe-Ito: told apart by all eyes, and in print.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442", "#222222")


class Point(Protocol):
    """Values drawn of one evaluation."""

    @property
    def iteration(self) -> int: ...
    @property
    def train_loss(self) -> float: ...
    @property
    def test_error(self) -> float: ...


class Curve(NamedTuple):
    """The evaluations of one run, and its name."""

    label: str
    points: Sequence[Point]


def draw_curves(curves: Sequence[Curve], path: PathLike) -> None:
    """Draw training loss and test error to a PNG (or SVG, PDF)."""
    from matplotlib.figure import Figure

    require_format(Path(path))
    drawn = [curve for curve in curves if curve.points]
    if not drawn:
        raise InputError("none of these runs has come to an evaluation: there is nothing to draw.")
    height = 4.2 + 0.22 * len(drawn)
    figure = Figure(figsize=(10.0, height), dpi=150, facecolor="white", layout="constrained")
    left, right = figure.subplots(1, 2)
    for index, curve in enumerate(drawn):
        colour = COLOURS[index % len(COLOURS)]
        steps = [point.iteration for point in curve.points]
        losses = [point.train_loss for point in curve.points]
        errors = [100 * point.test_error for point in curve.points]
        label = as_written(curve.label)
        left.plot(steps, losses, color=colour, linewidth=1.2, marker=".", label=label)
        right.plot(steps, errors, color=colour, linewidth=1.2, marker=".")
    _label(left, "training loss")
    _label(right, "test error, %")
    figure.legend(loc="outside lower left", fontsize=8, frameon=False)
    save(figure, path)


def _label(axes: Any, title: str) -> None:
    from matplotlib.ticker import FuncFormatter

    axes.set_title(title, fontsize=10, loc="left", color=INK)
    axes.set_xlabel("training steps", fontsize=9)
    axes.set_yscale("log")
    for which in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        which(FuncFormatter(lambda value, _: f"{value:g}"))  # 20, not 2 x 10 to the 1
    axes.tick_params(axis="y", which="minor", labelsize=6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, color="#e6e6e6", linewidth=0.6)
    axes.tick_params(labelsize=8)


MOST_FILTERS = 256  # more would be too small to see


def pixels(mask: torch.Tensor, shape: tuple[int, ...] | None) -> torch.Tensor | None:
    """Kept connections per pixel [height, width] if the layer reads whole images, else None."""
    if mask.ndim != 2:
        return None
    per_input = mask.sum(0)
    if shape is None:
        shape = (1, 28, 28) if len(per_input) == 28 * 28 else None
    if shape is None or len(shape) not in (2, 3) or math.prod(shape) != len(per_input):
        return None
    return per_input.view(-1, *shape[-2:]).sum(0)


def shares(mask: torch.Tensor, shape: tuple[int, ...] | None) -> torch.Tensor | None:
    """The share of each pixel's connections that is kept, where `pixels` has counts.

    A pixel has one connection to each of the layer's outputs from each of its channels.
    """
    counts = pixels(mask, shape)
    return None if counts is None else counts / (mask.numel() // counts.numel())


def filters(mask: torch.Tensor) -> torch.Tensor | None:
    """Kept connections per filter and position [filters, height, width] of a 2-d convolution."""
    if mask.ndim != 4 or len(mask) > MOST_FILTERS or mask.shape[-1] == 1:
        return None
    return mask.sum(1)


def tiled(counts: torch.Tensor) -> torch.Tensor:
    """All filters of `filters` in one picture [height, width], with gaps of NaN between them."""
    number, height, width = counts.shape
    columns = math.ceil(math.sqrt(number))
    rows = math.ceil(number / columns)
    picture = torch.full((rows * (height + 1) - 1, columns * (width + 1) - 1), torch.nan)
    for index in range(number):
        top, left = index // columns * (height + 1), index % columns * (width + 1)
        picture[top : top + height, left : left + width] = counts[index].float()
    return picture
