"""Files and folders that vanish or change in mid-run: noticed, said, and never made again."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from dying_parts import CONFIG, assert_same_end, at
from processes import PATIENCE, start_run, wait_for_metrics
from training_parts import chancy_network

from snip.common.errors import FileError
from snip.common.lock import locked
from snip.data import Dataset, load
from snip.runs import RunConfig, run
from snip.training import TrainConfig, train


@pytest.fixture(scope="module")
def mnist() -> Dataset:
    return load("mnist").subset(500, 200)


def test_a_deleted_folder_is_noticed_and_not_made_again(mnist: Dataset, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(FileError, match=r"run folder .*run .*was deleted, moved or replaced"):
        train(
            chancy_network(), mnist, CONFIG,
            folder=folder, on_metrics=at(4, lambda: shutil.rmtree(folder)),
        )  # fmt: skip
    assert not folder.exists()


def test_a_folder_that_another_process_has_made_again_is_left_alone(
    mnist: Dataset, tmp_path: Path
) -> None:
    folder = tmp_path / "run"

    def replace() -> None:
        shutil.rmtree(folder)
        folder.mkdir()
        for name in (".lock", "metrics.jsonl"):
            (folder / name).write_text("")

    with pytest.raises(FileError, match="deleted, moved or replaced"):
        train(chancy_network(), mnist, CONFIG, folder=folder, on_metrics=at(4, replace))
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        ".lock": "",
        "metrics.jsonl": "",
    }


def test_a_moved_folder_goes_on_when_it_is_back(mnist: Dataset, tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    with pytest.raises(FileError, match="Put the folder back"):
        train(
            chancy_network(), mnist, CONFIG,
            folder=folder, checkpoint_seconds=0, on_metrics=at(8, lambda: folder.rename(elsewhere)),
        )  # fmt: skip
    assert not folder.exists()
    elsewhere.rename(folder)
    assert_same_end(mnist, folder)


@pytest.mark.parametrize("seconds", [0.0, 1000.0])  # the next write is a checkpoint, or a line
def test_deleted_metrics_are_noticed_and_written_again_by_the_next_run(
    mnist: Dataset, tmp_path: Path, seconds: float
) -> None:
    path = tmp_path / "metrics.jsonl"
    safe = (
        r"The last good checkpoint is .*checkpoint\.pt, at iteration 7: running again goes on"
        if seconds == 0
        else "There is no checkpoint: running again starts over"
    )
    with pytest.raises(FileError, match=rf"metrics\.jsonl was deleted while .*{safe}"):
        train(
            chancy_network(), mnist, CONFIG,
            folder=tmp_path, checkpoint_seconds=seconds, on_metrics=at(8, path.unlink),
        )  # fmt: skip
    assert not path.exists()
    assert_same_end(mnist, tmp_path)
    assert len(path.read_text().splitlines()) == 3


def linked(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/null")


def replaced(path: Path) -> None:
    copied = path.with_name("copy")
    shutil.copy(path, copied)
    copied.replace(path)


@pytest.mark.parametrize(
    "change",
    [
        linked,
        replaced,
        lambda path: path.write_text(""),
        lambda path: path.write_text(path.read_text() + "x"),
        lambda path: (path.unlink(), path.mkdir()),
    ],
)
def test_metrics_that_somebody_else_writes_are_noticed(
    mnist: Dataset, tmp_path: Path, change: Callable[[Path], object]
) -> None:
    path = tmp_path / "metrics.jsonl"
    with pytest.raises(FileError, match=r"metrics\.jsonl was replaced or altered while"):
        train(
            chancy_network(), mnist, CONFIG,
            folder=tmp_path, on_metrics=at(8, lambda: change(path)), progress=False,
        )  # fmt: skip


def test_a_deleted_checkpoint_is_not_called_safe(mnist: Dataset, tmp_path: Path) -> None:
    def delete() -> None:
        for name in ("metrics.jsonl", "checkpoint.pt"):
            (tmp_path / name).unlink()

    with pytest.raises(FileError, match="There is no checkpoint: running again starts over"):
        train(
            chancy_network(), mnist, CONFIG,
            folder=tmp_path, checkpoint_seconds=0, on_metrics=at(8, delete),
        )  # fmt: skip


@pytest.mark.parametrize("name", ["config.json", "report.json", "masks.safetensors", "engine.json"])
def test_a_deleted_file_of_a_run_is_noticed(tmp_path: Path, name: str) -> None:
    train = TrainConfig(iterations=40, eval_every=20, batch_size=20)
    config = RunConfig("lenet-300-100", 0.9, engine="sparse", train=train)
    path = tmp_path / "run" / name
    with pytest.raises(FileError, match=rf"{name} was deleted while the training ran"):
        run(config, folder=tmp_path / "run", on_metrics=at(20, path.unlink), checkpoint_seconds=0)
    if name == "config.json":
        path.write_text(json.dumps(config.to_dict()))
    run(config, folder=tmp_path / "run")  # which goes on, and puts the others back
    assert path.exists()


@pytest.mark.parametrize("what", ["folder", "metrics"])
def test_a_run_whose_files_are_deleted_says_so_and_fails(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "run"
    running = start_run(folder)
    try:
        wait_for_metrics(folder, running)
        if what == "folder":
            folder.rename(tmp_path / "gone")  # in one move: rmtree would race with the writer
        else:
            (folder / "metrics.jsonl").unlink()
        _, said = running.communicate(timeout=PATIENCE)
    finally:
        running.kill()
    assert running.returncode == 2, said
    assert said.startswith("error: ")
    assert "deleted" in said
    assert "Traceback" not in said
    assert folder.exists() == (what == "metrics")
    assert not (folder / "metrics.jsonl").exists()


def test_a_failure_after_the_folder_is_gone_keeps_its_own_words(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(tmp_path / "run"):
        _ = shutil.rmtree(tmp_path / "run"), 1 / 0
