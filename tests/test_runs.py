"""Whole runs on real MNIST: what they leave in their folders, and how they go on."""

import dataclasses
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from training_parts import repeatable

import snip
from snip.common.errors import FileError, InputError
from snip.common.lock import locked
from snip.data import Dataset, load
from snip.models import build
from snip.runs import RunConfig, RunResult, run, seeds_of
from snip.training import Metrics, TrainConfig, evaluate

SHORT = TrainConfig(iterations=100, lr_drops=(60,), eval_every=50)
CONFIG = RunConfig("lenet-300-100", 0.95, train=SHORT)
FILES = [
    "checkpoint.pt", "config.json", "engine.json", "masks.safetensors", "metrics.jsonl",
    "model.safetensors", "report.json", "result.json", "selected.safetensors", "sums.json",
]  # fmt: skip


@pytest.fixture(scope="module")
def mnist() -> Dataset:
    return load("mnist")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    torch.set_num_threads(1)  # as in every test; a module's fixtures come before that
    return run(CONFIG, tmp_path_factory.mktemp("runs"))


class StoppedError(Exception):
    """Stands for a process that ends."""


def test_run_leaves_everything_in_its_folder(finished: RunResult) -> None:
    names = sorted(p.name for p in finished.folder.iterdir() if not p.name.startswith("."))
    assert names == FILES
    assert finished.folder.name.startswith("lenet-300-100_mnist_snip-0.95_100it_seed0_")
    data = json.loads((finished.folder / "result.json").read_text())
    assert data["sparsity_asked"] == 0.95
    assert data["kept"] == 13_330 or data["kept"] == 13_331
    assert data["total"] == 266_610
    assert data["protocol"] == "train-scored"
    assert data["machine"].keys() == {"cpu", "cores"}
    assert data["versions"].keys() == {"snip", "torch", "python"}
    assert data["test_error"] < 0.25
    assert data["best_test_error"] <= data["test_error"]
    assert json.loads((finished.folder / "config.json").read_text()) == CONFIG.to_dict()
    assert [line.iteration for line in finished.history()] == [50, 100]
    report = json.loads((finished.folder / "report.json").read_text())
    assert report["kept"] == data["kept"]


def test_saved_weights_load_into_a_plain_network(finished: RunResult, mnist: Dataset) -> None:
    masks = snip.Masks.load(finished.folder / "masks.safetensors")
    for name, error in [
        ("model.safetensors", finished.final_test_error),
        ("selected.safetensors", finished.test_error),
    ]:
        model = build("lenet-300-100", seed=9)
        model.load_state_dict(load_file(finished.folder / name))
        masks.check(model)
        assert evaluate(model, mnist.evaluation_batches(500)).error == pytest.approx(error)


def test_finished_run_is_returned_at_once(finished: RunResult) -> None:
    def never(metrics: Metrics) -> None:
        raise StoppedError

    again = run(CONFIG, finished.folder.parent, on_metrics=never)
    assert again == finished


def test_masks_say_where_they_come_from(finished: RunResult) -> None:
    provenance = snip.Masks.load(finished.folder / "masks.safetensors").provenance
    assert provenance.seeds == finished.seeds == seeds_of(CONFIG)
    assert provenance.protocol == "train-scored"
    assert (provenance.batches, provenance.samples) == (1, 100)


def test_stopped_run_resumes_to_the_same_bits(finished: RunResult, tmp_path: Path) -> None:
    def stop(metrics: Metrics) -> None:
        raise StoppedError

    with pytest.raises(StoppedError):
        run(CONFIG, tmp_path, checkpoint_seconds=0.05, on_metrics=stop)
    result = run(CONFIG, tmp_path)
    assert repeatable(result.history()) == repeatable(finished.history())
    for name in ("model.safetensors", "selected.safetensors", "masks.safetensors"):
        ours, theirs = (load_file(place / name) for place in (result.folder, finished.folder))
        assert all(torch.equal(value, theirs[key]) for key, value in ours.items())


def test_killed_between_training_and_result(finished: RunResult, tmp_path: Path) -> None:
    def never(metrics: Metrics) -> None:
        raise StoppedError

    folder = tmp_path / "run"
    shutil.copytree(finished.folder, folder)
    for name in ("result.json", "model.safetensors", "selected.safetensors"):
        (folder / name).unlink()
    again = run(CONFIG, folder=folder, on_metrics=never)  # trains not a single step
    assert again.test_error == finished.test_error
    ours, theirs = (load_file(place / "model.safetensors") for place in (folder, finished.folder))
    assert all(torch.equal(value, theirs[key]) for key, value in ours.items())


def test_dense_reference_has_no_masks(tmp_path: Path) -> None:
    train = dataclasses.replace(SHORT, iterations=20, lr_drops=())
    result = run(RunConfig("lenet-300-100", 0, train=train), tmp_path)
    assert "_dense_" in result.folder.name
    assert not (result.folder / "masks.safetensors").exists()
    assert (result.sparsity, result.kept, result.total) == (0.0, 266_610, 266_610)


def test_another_configuration_in_the_folder_is_refused(finished: RunResult) -> None:
    other = dataclasses.replace(CONFIG, sparsity=0.9, seed=4)
    before = sorted(p.stat().st_mtime_ns for p in finished.folder.iterdir())
    for resume in (True, False):
        with pytest.raises(FileError, match=r"another configuration \(seed .*sparsity 0\.95 there"):
            run(other, folder=finished.folder, resume=resume)
    assert sorted(p.stat().st_mtime_ns for p in finished.folder.iterdir()) == before


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(FileError, match="is no run folder"):
        run(CONFIG, folder=tmp_path)
    with pytest.raises(FileError, match="is a file"):
        run(CONFIG, folder=tmp_path / "thesis.tex")
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"model": "lenet-300-100", "colour": 1}'])
def test_damaged_configuration_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(FileError, match=r"config\.json is damaged"):
        run(CONFIG, folder=tmp_path)


def test_damaged_result_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG.to_dict()))
    (tmp_path / "result.json").write_text('{"config": {}}')
    with pytest.raises(FileError, match=r"result\.json is damaged"):
        run(CONFIG, folder=tmp_path)


def test_a_run_in_progress_is_left_alone(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(FileError, match="in use by another process"):
        run(CONFIG, folder=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_the_lock_is_held_until_the_result_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: dict[str, bool] = {}
    replace = os.replace

    def watched(source: Path, target: Path) -> None:
        try:
            with locked(tmp_path):
                held[target.name] = False
        except FileError:
            held[target.name] = True
        replace(source, target)

    monkeypatch.setattr(os, "replace", watched)
    run(RunConfig("lenet-300-100", 0.9, train=TrainConfig(iterations=2)), folder=tmp_path)
    assert held == dict.fromkeys(FILES, True)


def test_refused_input_leaves_no_folder(tmp_path: Path) -> None:
    too_much = dataclasses.replace(CONFIG, score_batch_size=60_000)
    with pytest.raises(InputError, match=r"60,000 images, but mnist has 54,000"):
        run(too_much, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_resume_false_starts_over(tmp_path: Path) -> None:
    train = dataclasses.replace(SHORT, iterations=10, lr_drops=())
    config = RunConfig("lenet-300-100", 0.9, train=train)
    first = run(config, tmp_path)
    (first.folder / "notes.txt").write_text("mine")
    seen: list[Metrics] = []
    again = run(config, tmp_path, resume=False, on_metrics=seen.append)
    assert len(seen) == 1
    assert again.test_error == first.test_error
    assert (first.folder / "notes.txt").read_text() == "mine"
