"""A result that is no better than guessing says so, and a result says which engine made it."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cli_fixtures import LENET, Snip
from expected_warnings import expects

from snip.runs import RunConfig, RunResult, chance_note
from snip.runs.guessing import chance_error, is_chance

# It always answers with the first class, until it is trained for long.
STUBBORN = """
import torch
from torch import nn

class Stubborn(nn.Sequential):
    def forward(self, images):
        return super().forward(images) + 20 * torch.eye(10)[0]

def build():
    return Stubborn(nn.Flatten(), nn.Linear(784, 8), nn.Linear(8, 10))
"""
UNTRAINED = ["--iterations", "1", "--lr-drops", "none", "--lr", "1e-9"]


def test_guessing_by_hand() -> None:
    labels = torch.tensor([0, 1, 1, 1, 2])
    assert chance_error(labels) == pytest.approx(0.4)
    # Of 10,000 images the error of a guess has a standard deviation of 0.3%.
    assert is_chance(0.9, 0.9, 10_000)
    assert is_chance(0.95, 0.9, 10_000)
    assert is_chance(0.892, 0.9, 10_000)
    assert not is_chance(0.89, 0.9, 10_000)


@pytest.mark.parametrize(("images", "guessing"), [(-5, 0.9), (0, 0.9), (10, 7.0), (10, -1.0)])
def test_numbers_that_cannot_be_say_nothing(
    finished_run: Path, images: int, guessing: float
) -> None:
    result = replace(RunResult.read(finished_run), test_images=images, chance_error=guessing)
    assert chance_note(result) is None


@pytest.mark.usefixtures("empty_folder")
@expects("losses")
def test_a_run_that_learnt_nothing_says_so(snip: Snip) -> None:
    flags = ["--sparsity", "0.9995", "--folder", "it"]  # which empties the last layer
    code, out, note = snip("run", *LENET, *flags, *UNTRAINED)
    assert code == 0
    assert "the test error is that of guessing (88.65%" in note  # 1,135 ones of 10,000 digits
    assert "nothing is left of" in note
    assert "--lr 1e-09: try 1e-10" in note
    assert "sparsity (99.95%)" in note
    shown = snip("inspect", "it")[1]
    assert "that of guessing" in shown
    assert "guessing" not in out


@pytest.mark.usefixtures("empty_folder")
@expects("losses")
def test_a_method_without_floors_is_not_told_to_use_one(snip: Snip) -> None:
    flags = ["--method", "lc", "--sparsity", "0.9995", "--folder", "it"]
    _, _, note = snip("run", *LENET, *flags, *UNTRAINED)
    assert "that of guessing" in note
    assert "nothing is left of 'fc1.weight'" in note
    assert "floor" not in note


@pytest.mark.usefixtures("empty_folder")
@pytest.mark.parametrize("model", ["lenet-300-100", "stubborn_one:build"])
@expects("losses")
def test_the_command_that_a_result_at_chance_names_works_as_printed(snip: Snip, model: str) -> None:
    Path("stubborn_one.py").write_text(STUBBORN)
    flags = ["--model", model, "--sparsity", "0.9995", "--folder", "a folder", *UNTRAINED]
    note = snip("run", *flags)[2]
    command, *words = shlex.split(note[note.index("`") + 1 : note.rindex("`")])
    code, out, _ = snip(*words)
    assert (command, code) == ("snip", 0)
    assert "dead units" in out
    assert "paths" in out


@pytest.mark.usefixtures("empty_folder")
def test_a_dense_run_at_chance_has_no_masks_to_look_at(snip: Snip) -> None:
    Path("stubborn_dense.py").write_text(STUBBORN)
    note = snip("run", "--model", "stubborn_dense:build", "--sparsity", "0", *UNTRAINED)[2]
    assert "look at the learning rate" in note
    assert "inspect" not in note


def test_a_run_that_learnt_says_nothing_of_chance(snip: Snip, finished_run: Path) -> None:
    assert "guessing" not in snip("inspect", finished_run)[1]


def test_a_result_says_which_engine_ran_and_why(snip: Snip, finished_run: Path) -> None:
    result = RunResult.read(finished_run)
    assert result.config.engine == "auto"
    chosen = json.loads((finished_run / "engine.json").read_text())
    assert chosen.pop("asked") == "auto"
    assert result.engine == chosen
    assert set(chosen["step_seconds"]) == {"dense", "sparse"}
    assert result.engine_note.startswith(f"{chosen['engine']} (a step was timed: dense ")
    assert result.engine_note in snip("inspect", finished_run)[1]


def test_a_result_of_an_older_version_is_read(finished_run: Path, tmp_path: Path) -> None:
    data = json.loads((finished_run / "result.json").read_text())
    for name in ("engine", "chance_error", "test_images"):
        del data[name]
    (tmp_path / "result.json").write_text(json.dumps(data))
    result = RunResult.read(tmp_path)
    assert (result.engine, result.chance_error) == ({}, None)


def test_auto_is_the_default_and_old_folders_keep_their_names() -> None:
    auto, dense = (RunConfig("lenet-300-100", 0.9, engine=name) for name in ("auto", "dense"))
    assert RunConfig("lenet-300-100", 0.9) == auto
    assert "engine" not in dense.identity()
    assert auto.identity()["engine"] == "auto"
    assert RunConfig("lenet-300-100", 0.0).engine == "dense"
    old = {"model": "lenet-300-100", "sparsity": 0.9}
    assert RunConfig.from_dict(old) == dense


def test_nothing_is_said_of_labels_that_were_dealt_out_at_random(finished_run: Path) -> None:
    result = replace(RunResult.read(finished_run), test_error=0.9)
    assert chance_note(result) is not None
    shuffled = replace(result, config=replace(result.config, labels="shuffled"))
    assert chance_note(shuffled) is None
