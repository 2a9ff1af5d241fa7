"""A training goes on with its own data, engine and module state, and refuses any other."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from training_parts import (
    CONFIG,
    StoppedError,
    chancy_network,
    pruned_network,
    same_weights,
    stopping_at,
)

from snip.common.errors import FileError, InputError
from snip.data import Augmentation, Dataset, Split, load
from snip.engine.kernels.library import available
from snip.training import train


@pytest.fixture(scope="module")
def mnist() -> Dataset:
    return load("mnist").subset(2000, 500)


def altered(dataset: Dataset, what: str) -> Dataset:
    images, labels = dataset.train.images.clone(), dataset.train.labels.clone()
    if what == "pixels":
        images = 255 - images
    elif what == "labels":
        labels[7] = (labels[7] + 1) % 10
    elif what == "test":
        return dataset.subset(2000, 400)
    elif what == "note":
        return dataclasses.replace(dataset, note="JPEG-recompressed")
    elif what == "augment":
        return dataclasses.replace(dataset, augment=Augmentation())
    elif what == "normalisation":
        return dataclasses.replace(dataset, mean=dataset.mean + 0.1)
    return dataclasses.replace(dataset, train=Split(images, labels))


@pytest.mark.parametrize("what", ["pixels", "labels", "test", "note", "augment", "normalisation"])
def test_other_data_is_refused(mnist: Dataset, tmp_path: Path, what: str) -> None:
    config = dataclasses.replace(CONFIG, iterations=2, lr_drops=())
    train(chancy_network(), mnist, config, folder=tmp_path)
    train(chancy_network(), altered(mnist, "nothing"), config, folder=tmp_path)  # a copy
    with pytest.raises(FileError, match=r"another configuration \(dataset\."):
        train(chancy_network(), altered(mnist, what), config, folder=tmp_path)


@pytest.mark.parametrize(("began", "goes_on"), [("dense", "sparse"), ("sparse", "dense")])
def test_another_engine_is_refused(
    mnist: Dataset, tmp_path: Path, began: str, goes_on: str
) -> None:
    with pytest.raises(StoppedError):
        train(
            pruned_network(mnist), mnist, CONFIG,
            folder=tmp_path, checkpoint_seconds=0, engine=began, step=stopping_at(5),
        )  # fmt: skip
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(FileError, match=f"engine '{began}' there, '{goes_on}' here"):
        train(pruned_network(mnist), mnist, CONFIG, folder=tmp_path, engine=goes_on)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


@pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set")
def test_a_sparse_training_does_not_go_on_without_kernels(
    mnist: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"folder": tmp_path, "engine": "sparse"}
    with pytest.raises(StoppedError):
        train(
            pruned_network(mnist), mnist, CONFIG,
            checkpoint_seconds=0, step=stopping_at(5), **settings,
        )  # fmt: skip
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    monkeypatch.setattr("snip.engine.accelerate.available", lambda: False)
    with pytest.raises(InputError, match=r"began sparse and cannot go on so .*resume=False"):
        train(pruned_network(mnist), mnist, CONFIG, **settings)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_an_engine_without_a_checkpoint_binds_nobody(mnist: Dataset, tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        train(
            pruned_network(mnist), mnist, CONFIG,
            folder=tmp_path, engine="sparse", step=stopping_at(1),
        )  # fmt: skip
    dense, again = pruned_network(mnist), pruned_network(mnist)
    train(dense, mnist, CONFIG)
    train(again, mnist, CONFIG, folder=tmp_path)
    assert same_weights(dense, again)
    assert not (tmp_path / "engine.json").exists()


@pytest.mark.parametrize("text", ["", "[1]", "{}", '{"asked": "sparse", "engine": "sparse"}'])
def test_a_damaged_engine_file_is_refused(mnist: Dataset, tmp_path: Path, text: str) -> None:
    (tmp_path / "engine.json").write_text(text)
    with pytest.raises(FileError, match=r"engine\.json is damaged"):
        train(pruned_network(mnist), mnist, CONFIG, folder=tmp_path, engine="sparse")


class Counting(nn.Linear):
    """Counts its calls, and keeps the count as modules may: not as a tensor."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x)

    def get_extra_state(self) -> Any:
        return {"calls": self.calls}

    def set_extra_state(self, state: Any) -> None:
        self.calls = state["calls"]


class Foreign(Counting):
    """Keeps an object that no checkpoint may hold."""

    def get_extra_state(self) -> Any:
        return Counting

    def set_extra_state(self, state: Any) -> None:
        pass


@pytest.mark.parametrize("kind", [Counting, Foreign])
@pytest.mark.parametrize("validation", [0.0, 0.1])
def test_extra_state_is_no_obstacle(
    mnist: Dataset, tmp_path: Path, kind: type[Counting], validation: float
) -> None:
    def network() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Flatten(), kind(784, 10))

    config = dataclasses.replace(CONFIG, validation=validation)
    with pytest.raises(StoppedError):
        train(
            network(), mnist, config,
            folder=tmp_path, checkpoint_seconds=0, step=stopping_at(33),
        )  # fmt: skip
    whole, again = network(), network()
    train(whole, mnist, config)
    result = train(again, mnist, config, folder=tmp_path)
    assert result.weights.keys() == {"1.weight", "1.bias"}
    assert torch.equal(whole[1].weight, again[1].weight)
    if kind is Counting:
        assert again[1].calls == whole[1].calls
