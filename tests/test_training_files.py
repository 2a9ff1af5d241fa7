"""What a training leaves on disk: damaged, foreign, in use, or no room for it."""

import dataclasses
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_fixtures import Snip
from torch import nn
from training_parts import chancy_network, network, repeatable

from snip.common import files
from snip.common.errors import FileError
from snip.common.lock import locked
from snip.data import Dataset, load
from snip.training import Metrics, TrainConfig, load_checkpoint, train

CONFIG = TrainConfig(iterations=12, lr_drops=(), batch_size=50, eval_every=4)
needs_full_device = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")


@pytest.fixture(scope="module")
def mnist() -> Dataset:
    return load("mnist").subset(500, 200)


@pytest.fixture
def finished(mnist: Dataset, tmp_path: Path) -> Path:
    train(network(), mnist, CONFIG, folder=tmp_path)
    return tmp_path / "checkpoint.pt"


def test_checkpoint_holds_what_it_should(finished: Path) -> None:
    content = load_checkpoint(finished)
    assert content["identity"]["lr"] == 0.1
    assert content["state"]["iteration"] == 12
    assert set(content["model"]) == set(network().state_dict())  # the names of a plain model
    assert sorted(path.name for path in finished.parent.iterdir() if path.name[0] != ".") == [
        "checkpoint.pt",
        "metrics.jsonl",
    ]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_truncated_checkpoint_is_refused(mnist: Dataset, finished: Path, share: float) -> None:
    data = finished.read_bytes()
    finished.write_bytes(data[: int(len(data) * share)])
    model = network()
    with pytest.raises(FileError, match=r"checkpoint\.pt is damaged .* delete it to start"):
        train(model, mnist, CONFIG, folder=finished.parent)
    assert all(torch.equal(v, network().state_dict()[n]) for n, v in model.state_dict().items())


def test_every_flipped_byte_is_noticed_or_harmless(finished: Path) -> None:
    data, good = finished.read_bytes(), load_checkpoint(finished)
    for place in range(0, len(data), len(data) // 40):
        finished.write_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
        try:
            found = load_checkpoint(finished)
        except FileError:
            continue  # refused, as it should be; padding between the records may change
        for name, value in good["model"].items():
            assert torch.equal(found["model"][name], value)


class Foreign:
    """A pickle that would run code of its own: it would make a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("kind", ["text", "pickle", "zip", "weights", "object"])
def test_foreign_file_is_refused_and_not_run(
    mnist: Dataset, finished: Path, kind: str, tmp_path: Path
) -> None:
    trace = tmp_path / "code-was-run"
    if kind == "text":
        finished.write_text("not a checkpoint")
    elif kind == "pickle":
        finished.write_bytes(pickle.dumps(Foreign(trace)))
    elif kind == "zip":
        with zipfile.ZipFile(finished, "w") as archive:
            archive.writestr("readme.txt", "hello")
    elif kind == "weights":
        torch.save(network().state_dict(), finished)
    else:
        torch.save({"state": Foreign(trace)}, finished)
    with pytest.raises(FileError, match="asks to run code" if kind == "object" else "damaged"):
        train(network(), mnist, CONFIG, folder=tmp_path)
    assert not trace.exists()


def test_checkpoint_of_a_later_format_is_refused(finished: Path) -> None:
    content = load_checkpoint(finished)
    torch.save({**content, "format": 99}, finished)
    with pytest.raises(FileError, match="format 99"):
        load_checkpoint(finished)


def test_state_without_a_part_is_refused(mnist: Dataset, finished: Path) -> None:
    content = load_checkpoint(finished)
    del content["state"]["history"]
    torch.save(content, finished)
    with pytest.raises(FileError, match="damaged"):
        train(network(), mnist, CONFIG, folder=finished.parent)


def test_missing_checkpoint_has_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="there is no checkpoint at"):
        load_checkpoint(tmp_path / "checkpoint.pt")


def test_checkpoint_of_another_configuration_is_refused(mnist: Dataset, finished: Path) -> None:
    other = dataclasses.replace(CONFIG, lr=0.05, seed=3)
    with pytest.raises(FileError, match=r"lr 0\.1 there, 0\.05 here; seed 0 there, 3 here"):
        train(network(), mnist, other, folder=finished.parent)


def test_option_younger_than_the_checkpoint_counts_as_default(
    mnist: Dataset, finished: Path
) -> None:
    content = load_checkpoint(finished)
    del content["identity"]["augment"]  # as if it had been written before there was one
    torch.save(content, finished)
    assert train(network(), mnist, CONFIG, folder=finished.parent).final.iteration == 12


def test_checkpoint_of_another_network_is_refused(mnist: Dataset, finished: Path) -> None:
    model = network(hidden=17)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(FileError, match=r"another network \(it differs at 1\.bias"):
        train(model, mnist, CONFIG, folder=finished.parent)
    assert all(torch.equal(v, before[n]) for n, v in model.state_dict().items())


def test_folder_in_use_is_refused(mnist: Dataset, tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(FileError, match="in use by another process"):
        train(network(), mnist, CONFIG, folder=tmp_path)
    train(network(), mnist, CONFIG, folder=tmp_path)  # free again


def test_folder_that_cannot_be_is_refused(mnist: Dataset, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="file is a file: give a folder"):
        train(network(), mnist, CONFIG, folder=tmp_path / "file" / "run")


def test_leftovers_of_a_killed_writer_are_removed(mnist: Dataset, finished: Path) -> None:
    def dies(path: Path) -> None:
        path.write_bytes(b"half a file")
        (path.parent / f"{path.stem}2{path.suffix}").write_bytes(b"left by a killed process")

    folder = finished.parent
    files.write_with(folder / "model.safetensors", dies)
    (folder / "model.safetensors").unlink()
    assert len(list(folder.glob(".snip-tmp-*.safetensors"))) == 1
    users = [folder / ".config.mine.json", folder / ".checkpoint.old.pt"]
    for path in users:
        path.write_text("a user's own")
    train(network(), mnist, CONFIG, folder=folder)
    assert not list(folder.glob(".snip-tmp-*"))
    assert all(path.exists() for path in users)


@needs_full_device
def test_full_disk_at_a_metrics_line(
    mnist: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, append = tmp_path / "metrics.jsonl", files.append_line

    def fill_disk(metrics: Metrics) -> None:
        if metrics.iteration == 4:
            monkeypatch.setattr(files, "append_line", lambda _, line: append("/dev/full", line))

    with pytest.raises(FileError, match="the disk is full"):
        train(network(), mnist, CONFIG, folder=tmp_path, checkpoint_seconds=0, on_metrics=fill_disk)
    monkeypatch.undo()  # room again
    whole = train(network(), mnist, CONFIG)
    resumed = train(network(), mnist, CONFIG, folder=tmp_path)
    assert repeatable(resumed.history) == repeatable(whole.history)
    assert len(path.read_text().splitlines()) == 3


@needs_full_device
def test_full_disk_at_a_checkpoint_keeps_the_last_one(
    mnist: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill_disk(metrics: Metrics) -> None:
        if metrics.iteration == 8:
            save = torch.save
            monkeypatch.setattr(torch, "save", lambda content, _: save(content, "/dev/full"))

    with pytest.raises(FileError, match=r"cannot write .*checkpoint\.pt"):
        train(network(), mnist, CONFIG, folder=tmp_path, checkpoint_seconds=0, on_metrics=fill_disk)
    monkeypatch.undo()
    assert load_checkpoint(tmp_path / "checkpoint.pt")["state"]["iteration"] == 7
    assert not list(tmp_path.glob(".snip-tmp-*"))  # the half-written one took its room along
    resumed = train(network(), mnist, CONFIG, folder=tmp_path)
    whole = train(network(), mnist, CONFIG)
    assert repeatable(resumed.history) == repeatable(whole.history)


class Hostile:
    """A pickle that would make a folder when it is read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("kind", ["call", "class"])
def test_a_file_that_asks_to_run_code_is_called_that(
    snip: Snip, mnist: Dataset, tmp_path: Path, kind: str
) -> None:
    trace = tmp_path / "code-was-run"
    path = tmp_path / "run" / "checkpoint.pt"
    path.parent.mkdir()
    torch.save({"model": Hostile(trace) if kind == "call" else nn.Linear(2, 2)}, path)
    with pytest.raises(FileError) as said:
        train(chancy_network(), mnist, CONFIG, folder=path.parent)
    code, _, inspected = snip("inspect", path)
    assert code == 2
    for message in (str(said.value), inspected):
        assert f"asks to run code ({'posix.mkdir' if kind == 'call' else 'torch.nn.'}" in message
        assert "which Snip never does" in message
        assert "damaged" not in message
        for advice in ("weights_only", "safe_globals", "trusted", "torch.load"):
            assert advice not in message
    assert not trace.exists()
