"""Runs of methods that prune a trained network: their phases, what they share, how they go on."""

import dataclasses
import json
import multiprocessing
import shutil
import signal
import threading
import time
from importlib import import_module
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from training_parts import repeatable

import snip
from snip.common.errors import InputError
from snip.common.lock import locked
from snip.data import Dataset, load
from snip.methods import METHODS
from snip.methods.kinds import DuringTraining, exponential
from snip.runs import RunConfig, run
from snip.training import TrainConfig

RUN = import_module("snip.runs.run")  # the package has a function of this name
TRAINING = [name for name, method in METHODS.items() if isinstance(method, DuringTraining)]
TINY = TrainConfig(lr=0.02, iterations=20, lr_drops=(10,), eval_every=1000)
# Dense: which engine is faster takes time to tell, and may be another one every time.
CONFIG = RunConfig("lenet-300-100", 0.9, method="lwc", engine="dense", train=TINY)


def little(*_args: object, **_options: object) -> Dataset:
    return load("mnist").subset(1000, 200)


@pytest.fixture(autouse=True)
def _little_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RUN, "load", little)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tmp_path_factory.mktemp("runs")


@pytest.mark.parametrize("method", TRAINING)
def test_a_run_prunes_exactly_and_shares_the_first_training(root: Path, method: str) -> None:
    config = dataclasses.replace(
        CONFIG, method=method, engine="auto" if method == "dns" else "dense"
    )
    first = root / config.trained_first.folder_name
    before = (first / "checkpoint.pt").stat().st_mtime_ns if first.exists() else None
    result = run(config, root, progress=False)
    masks = snip.Masks.load(result.folder / "masks.safetensors")
    biases = METHODS[method].biases
    assert masks.total == (266_610 if biases else 266_200)
    assert result.kept == masks.kept == round(masks.total * 0.1)
    assert masks.provenance.method == method
    assert masks.provenance.note == result.note
    assert (masks.provenance.left_out == {}) == biases
    weights = load_file(result.folder / "model.safetensors")
    assert all(not weights[name][~mask].any() for name, mask in masks.items())
    assert result.cost["first training"]["iterations"] == 20
    assert len(result.cost) > 1
    assert before in (None, (first / "checkpoint.pt").stat().st_mtime_ns)
    assert not list(result.folder.glob("phases/*/checkpoint.pt"))  # of no more use
    assert run(config, root).to_dict() == result.to_dict()  # it is finished: nothing is done again


@pytest.mark.parametrize("method", ["lwc", "obd", "lobs"])
def test_rounds_and_last_training_run_on_the_sparse_engine(root: Path, method: str) -> None:
    result = run(dataclasses.replace(CONFIG, method=method, engine="sparse"), root, progress=False)
    rounds = list((result.folder / "phases").glob("round-*/engine.json"))
    assert rounds
    used = [json.loads(path.read_text(encoding="utf-8"))["engine"] for path in rounds]
    assert used == ["sparse"] * len(rounds)
    assert result.engine["engine"] == "sparse"


def test_lwc_prunes_in_rounds_of_exact_densities(root: Path) -> None:
    result = run(CONFIG, root, progress=False)
    rounds = exponential(5)(0.9)
    before = None
    for number, sparsity in enumerate(rounds[:-1], 1):
        masks = snip.Masks.load(result.folder / "phases" / f"round-{number}" / "masks.safetensors")
        assert masks.kept == round(masks.total * (1 - sparsity))
        assert before is None or (masks & before) == masks  # what is gone stays gone
        before = masks
    assert (snip.Masks.load(result.folder / "masks.safetensors") & before).kept == result.kept


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"protocol": "redraw"}, "protocol is 'redraw', but method 'lwc' prunes a trained"),
        ({"scope": "erk"}, "scope is 'erk'"),
        ({"budget": "flops"}, "budget is 'flops'"),
        ({"biases": "keep"}, "biases is 'keep'"),
        ({"granularity": "4x4"}, "granularity is '4x4'"),
        ({"score_batches": 3}, "score_batches is 3"),
        ({"floor": 10}, "floor is 10"),
    ],
)
def test_options_that_a_method_would_not_obey_are_refused(change: dict, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        dataclasses.replace(CONFIG, **change)


@pytest.mark.parametrize("method", ["svd", "obd", "lobs"])
def test_a_network_that_a_method_cannot_take_is_refused_before_anything_is_written(
    tmp_path: Path, method: str
) -> None:
    config = RunConfig("lstm-s", 0.9, method=method, train=TINY)
    with pytest.raises(InputError, match=rf"method '{method}' cannot take .*LSTM"):
        run(config, tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_schedule_is_one_that_the_dense_networks_stand() -> None:
    assert RunConfig("lenet-5-caffe", 0.9, method="lwc").training.lr == 0.02
    assert RunConfig("lenet-5-caffe", 0.9).training.lr == 0.1
    last = RunConfig("lenet-300-100", 0.9, method="lwc", train=TINY).last_training
    assert (last.iterations, last.lr_drops, last.lr) == (10, (5,), pytest.approx(0.002))


def test_whoever_finds_the_first_training_under_way_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, let_go, told = threading.Event(), threading.Event(), []

    def remark(text: str) -> None:
        told.append(text)
        let_go.set()

    monkeypatch.setattr("snip.runs.in_phases.WAIT", 0.02)
    monkeypatch.setattr("snip.runs.in_phases.remark", remark)

    def other() -> None:  # a lock is of an open file: a thread has one of its own
        with locked(tmp_path / CONFIG.trained_first.folder_name):
            held.set()
            let_go.wait(60)

    thread = threading.Thread(target=other)
    thread.start()
    held.wait(60)
    result = run(CONFIG, tmp_path, progress=False)
    thread.join()
    assert result.kept == 26_620
    assert [text.endswith("This run waits.") for text in told] == [True]


def work(root: Path) -> None:
    torch.set_num_threads(1)
    RUN.load = little
    run(KILLED, root, progress=False, checkpoint_seconds=0)


KILLED = dataclasses.replace(CONFIG, method="lobs", sparsity=0.99)  # which changes weights too


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL here")
def test_killed_in_any_phase_a_run_ends_with_the_same_bits(root: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["snip.runs", "torch._dynamo", "pytest"])
    own = KILLED.folder_name
    kills = 0
    for moment in (
        f"{KILLED.trained_first.folder_name}/checkpoint.pt",
        f"{own}/phases/round-2/masks.safetensors",
        f"{own}/phases/round-3/checkpoint.pt",
        f"{own}/masks.safetensors",
    ):
        process = context.Process(target=work, args=(tmp_path,))
        process.start()
        while not (tmp_path / moment).exists() and process.is_alive():
            time.sleep(0.002)
        process.kill()
        process.join(60)
        kills += process.exitcode == -signal.SIGKILL
    assert kills == 4
    again = run(KILLED, tmp_path, progress=False)
    whole = run(KILLED, root, progress=False)
    for name in ("model.safetensors", "selected.safetensors", "masks.safetensors"):
        found, expected = (load_file(r.folder / name) for r in (again, whole))
        assert all(torch.equal(value, found[key]) for key, value in expected.items())
    assert repeatable(again.history()) == repeatable(whole.history())
    assert again.cost.keys() == whole.cost.keys()


def test_masks_of_a_run_that_was_killed_before_its_checkpoint_are_made_again(root: Path) -> None:
    """They are of weights that nobody has any more: the folder must have those of its training."""
    config = dataclasses.replace(CONFIG, sparsity=0.8)
    place = root / config.folder_name
    place.mkdir()
    (place / "config.json").write_text(json.dumps(config.to_dict()))
    other = run(CONFIG, root, progress=False)
    left = snip.Masks.load(other.folder / "masks.safetensors")
    left.save(place / "masks.safetensors")
    result = run(config, root, progress=False)
    masks = snip.Masks.load(place / "masks.safetensors")
    assert masks != left
    assert masks.kept == result.kept == round(masks.total * 0.2)
    weights = load_file(place / "model.safetensors")
    assert all(not weights[name][~mask].any() for name, mask in masks.items())


def test_a_run_can_start_over(root: Path) -> None:
    before = run(CONFIG, root, progress=False)
    again = run(CONFIG, root, resume=False, progress=False)
    assert again.test_error == before.test_error
    assert json.loads((again.folder / "config.json").read_text()) == CONFIG.to_dict()


def test_what_the_first_training_took_is_known_when_its_folder_is_gone(
    root: Path, tmp_path: Path
) -> None:
    whole = run(CONFIG, root, progress=False)
    place = tmp_path / CONFIG.folder_name
    shutil.copytree(whole.folder, place)
    for name in ("result.json", "sums.json"):  # as if it was stopped after its last checkpoint
        (place / name).unlink()
    again = run(CONFIG, tmp_path, progress=False)
    assert again.cost["first training"] == whole.cost["first training"]
    assert again.cost.keys() == whole.cost.keys()
    assert not (tmp_path / CONFIG.trained_first.folder_name).exists()
