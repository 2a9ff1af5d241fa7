"""What the page's explorer shows of a run: pictures and counts, computed when the page is made."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import torch

from snip.common.errors import InputError
from snip.common.text import escaped, unforeseen
from snip.data.dataset import Dataset
from snip.experiments.fig2 import SPARSITIES
from snip.masks import Masks
from snip.network.layout import is_weight
from snip.page.finding import Run
from snip.reports.pictures import COLOUR_MAP, filters, pixels, tiled
from snip.runs import RunConfig
from snip.runs.exploring import class_maps, class_sizes, kept_by_sparsity, not_explorable
from snip.runs.naming import SCORING
from snip.selection.request import AUTO

LAYER_SPARSITIES = (
    *(hundredths / 100 for hundredths in range(0, 95, 5)),
    *(hundredths / 100 for hundredths in range(95, 100)),
)
GAP = 255  # a byte of a picture that belongs to no connection; others run from 0 to 254

# A repair follows the network, and may score it again: too slow for every place of a slider.
NO_REPAIR = (
    "The sliders follow the scores alone. This run's floor is 'auto': where no path from input to "
    "output would be left, its own masks keep more of small layers than is shown here."
)

Load = Callable[[str], Dataset]


class Explorer:
    """Computes what is shown of each run, once for all runs that are scored alike."""

    def __init__(self, load: Load, *, own_networks: bool, score: bool) -> None:
        """`own_networks` allows to import a network of the user's that a folder names."""
        self._load, self._own_networks, self._score = load, own_networks, score
        self._known: dict[str, dict[str, Any]] = {}

    def of(self, run: Run) -> dict[str, Any]:
        """The run's own picture, and the key of what scoring it again shows."""
        picture = _picture_of(run)
        if run.config is None:
            return {"picture": picture, "scored": None}
        key = _key(run.config)
        if key not in self._known:
            self._known[key] = self._scored(run.config)
        return {"picture": picture, "scored": key, "sparsity": run.config.sparsity}

    def scored(self) -> dict[str, dict[str, Any]]:
        """What scoring showed, by key."""
        return self._known

    def _scored(self, config: RunConfig) -> dict[str, Any]:
        reason = self._refusal(config)
        if reason is None:
            try:
                dataset = self._load(config.dataset)
                found = {"classes": _classes(config, dataset), "layers": _layers(config, dataset)}
                return found | ({"reason": NO_REPAIR} if config.floor == AUTO else {})
            except InputError as error:
                reason = str(error)
            except Exception as error:  # a network may fail in any way; its runs are still shown
                reason = f"scoring it failed ({unforeseen(error)})."
        reason = escaped(f"There are no sliders here: {reason}")
        return {"classes": None, "layers": None, "reason": reason}

    def _refusal(self, config: RunConfig) -> str | None:
        if not self._score:
            return "the page was made with --no-score."
        if config.is_user_model and not self._own_networks:
            # A folder must not make us run code: it may be somebody else's.
            return f"{config.model} is your own network; --own-networks lets it be imported."
        reason = not_explorable(config)
        return None if reason is None else f"{reason}."


def _picture_of(run: Run) -> dict[str, Any] | None:
    try:
        return None if run.masks is None else own_picture(run.masks)
    except Exception:  # masks that nobody would draw, such as of no outputs, have no picture
        return None


def own_picture(masks: Masks) -> dict[str, Any] | None:
    """What the first layer of the pruned network looks at; None if it is nothing to look at."""
    first = next(((n, m) for n, m in masks.items() if is_weight(m.shape)), None)
    if first is None:
        return None
    name, mask = first
    seen = pixels(mask, masks.provenance.input_shape)
    if seen is not None:
        unseen = int((seen == 0).sum())
        caption = f"{unseen:,} of {seen.numel():,} pixels are not looked at"
        return _picture(name, seen, int(seen.max()), caption, "connections kept per pixel")
    tiles = filters(mask)
    if tiles is None:
        return None
    empty = int((tiles.flatten(1).sum(1) == 0).sum())
    caption = f"{empty} of {len(tiles)} filters are empty"
    return _picture(
        name, tiled(tiles), mask.shape[1], caption, "channels kept per position of a filter"
    )


def colours() -> str:
    """The colours of all pictures, 256 times red, green, blue."""
    from matplotlib import colormaps

    table = (colormaps[COLOUR_MAP](range(256))[:, :3] * 255).round().astype("uint8")
    return _text(torch.from_numpy(table))


def _picture(name: str, counts: torch.Tensor, most: int, caption: str, unit: str) -> dict[str, Any]:
    shares = counts.float() / max(most, 1)
    return {
        "name": escaped(name),
        "height": counts.shape[0],
        "width": counts.shape[1],
        "most": most,
        "unit": unit,
        "caption": caption,
        "bytes": _text(_bytes(shares)),
    }


def _classes(config: RunConfig, dataset: Dataset) -> dict[str, Any] | None:
    maps = class_maps(config, dataset, SPARSITIES)
    if maps is None:
        return None
    return {
        "sparsities": SPARSITIES,
        "classes": maps.shape[0],
        "height": maps.shape[2],
        "width": maps.shape[3],
        "images": class_sizes(config, dataset),
        "bytes": _text(_bytes(maps)),  # [classes, sparsities, height, width]
    }


def _layers(config: RunConfig, dataset: Dataset) -> dict[str, Any] | None:
    kept = kept_by_sparsity(config, dataset, LAYER_SPARSITIES)
    whole = kept.pop(0.0)
    if not kept:
        return None
    return {
        "names": [escaped(name) for name in whole],
        "totals": list(whole.values()),
        "sparsities": list(kept),
        "kept": [list(counts.values()) for counts in kept.values()],  # [sparsities, layers]
    }


def _bytes(shares: torch.Tensor) -> torch.Tensor:
    scaled = (shares.nan_to_num(0.0).clamp(0, 1) * (GAP - 1)).round()
    return torch.where(shares.isnan(), float(GAP), scaled).to(torch.uint8)


def _text(data: torch.Tensor) -> str:
    return base64.b64encode(data.contiguous().numpy().tobytes()).decode()


def _key(config: RunConfig) -> str:
    """Runs with the same key are scored alike, whatever they were pruned to and trained by."""
    alike = [getattr(config, name) for name in ("model", "dataset", *SCORING, "seed")]
    return json.dumps([*alike, config.training.validation])
