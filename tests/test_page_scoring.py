"""What the page shows by scoring again, and what it says where it cannot."""

from __future__ import annotations

import base64
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from cli_fixtures import OWN_NETWORK
from page_parts import html_of

from snip.cli.repeating import command_of
from snip.common.errors import FileError
from snip.data import Dataset, Split, load
from snip.experiments.fig2 import SPARSITIES
from snip.masks import Masks
from snip.page.book import Book
from snip.page.explorer import NO_REPAIR, Explorer
from snip.page.finding import Run, read_run
from snip.runs import RunConfig
from snip.runs.exploring import class_maps, kept_by_sparsity, not_explorable

pytestmark = pytest.mark.usefixtures("empty_folder")


def test_other_sparsities_agree_with_the_run_at_its_own(page_run: Path) -> None:
    config, masks = read_run(page_run).config, Masks.load(page_run / "masks.safetensors")
    found = kept_by_sparsity(config, load("mnist"), (0.0, 0.5, 0.95))
    own = {name: int(mask.sum()) for name, mask in masks.items() if mask.ndim > 1}
    assert found[0.95] == own
    assert list(found[0.0].values()) == [235_200, 30_000, 1_000]
    assert sum(found[0.5].values()) == 133_305


def test_biases_that_stay_take_no_place_at_other_sparsities_either() -> None:
    kept = RunConfig("lenet-300-100", 0.95, biases="keep", initializer="vs", protocol="redraw")
    found = kept_by_sparsity(kept, load("mnist"), (0.5, 0.95))
    assert [sum(layers.values()) for layers in found.values()] == [133_100, 13_310]


def test_class_maps_look_like_their_class(page_run: Path) -> None:
    mnist = load("mnist")
    maps = class_maps(read_run(page_run).config, mnist, (0.5, 0.9))
    assert maps.shape == (10, 2, 28, 28)
    assert maps[:, 0].mean() > maps[:, 1].mean() > 0
    means = [mnist.train.images[mnist.train.labels == k].float().mean(0)[0] for k in range(10)]
    for label, found in enumerate(maps[:, 1]):
        likeness = [float((found - found.mean()).mul(m - m.mean()).sum() / m.std()) for m in means]
        assert likeness.index(max(likeness)) == label
    conv = dataclasses.replace(read_run(page_run).config, model="lenet-5-caffe")
    assert class_maps(conv, mnist, (0.5,)) is None


def test_class_pictures_of_colour_images_have_shades(tmp_path: Path) -> None:
    """At 30% sparsity a pixel of three channels keeps 0.7 of its connections, not 2.1."""
    Path("colour_nets.py").write_text(OWN_NETWORK)
    images, labels = torch.randint(256, (200, 3, 32, 32), dtype=torch.uint8), torch.arange(200) % 10
    split = Split(images, labels)
    colours = Dataset.from_splits("cifar-10", split, split, classes=10)
    config = RunConfig("colour_nets:small", 0.9, "cifar-10", score_batch_size=10)
    explorer = Explorer(lambda _name: colours, own_networks=True, score=True)
    explorer.of(Run(tmp_path, config))
    (found,) = explorer.scored().values()
    assert found["classes"]["sparsities"] == SPARSITIES
    pictures = np.frombuffer(base64.b64decode(found["classes"]["bytes"]), np.uint8)
    shares = pictures.reshape(10, len(SPARSITIES), 32, 32).mean((0, 2, 3)) / 254
    kept = [1 - sparsity for sparsity in SPARSITIES]
    assert shares == pytest.approx(kept, abs=0.02)  # nearly all connections are in this layer
    assert pictures.max() == 254
    assert pictures.reshape(10, len(SPARSITIES), -1)[:, 2].min() < 200


@pytest.mark.parametrize(
    "fields",
    [{"method": "lwc"}, {"method": "force"}, {"granularity": "channel"}, {"control": "random"}],
)
def test_what_one_scoring_cannot_tell(fields: dict[str, str]) -> None:
    assert not_explorable(RunConfig("lenet-300-100", 0.9)) is None
    assert not_explorable(RunConfig("lenet-300-100", 0.9, **fields))


def test_a_floor_that_sliders_do_not_follow_is_said(page_copy: Path) -> None:
    data = json.loads((page_copy / "config.json").read_text())
    assert NO_REPAIR not in html_of(page_copy, score=True)
    (page_copy / "config.json").write_text(json.dumps(data | {"floor": "auto"}))
    assert NO_REPAIR in html_of(page_copy, score=True)


def test_scoring_that_fails_in_any_way_is_said(page_run: Path) -> None:
    def broken(_name: str):
        raise ZeroDivisionError("by nothing")

    html = Book([page_run], command_of, broken).page()
    assert "There are no sliders here: scoring it failed (ZeroDivisionError: by nothing)." in html
    assert "fc1.weight" in html


def test_data_that_is_not_here_is_said(page_run: Path) -> None:
    def missing(name: str):
        raise FileError(f"{name} is not here.")

    book = Book([page_run], command_of, missing)
    assert "There are no sliders here: mnist is not here." in book.page()
