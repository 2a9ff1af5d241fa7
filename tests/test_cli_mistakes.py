"""Mistakes on the command line: one sentence each, and nothing is changed."""

from pathlib import Path

import pytest
import torch
from cli_fixtures import HALF, LENET, OWN_NETWORK, PRUNE, RUN, Snip, files

from snip.models import build

pytestmark = pytest.mark.usefixtures("empty_folder")


RUN_HALF = ["run", *LENET, *HALF]
MISTAKES = {
    "percentage": (["run", *LENET, "--sparsity", "95"], "write 0.95"),
    "sparsity of one": (["run", *LENET, "--sparsity", "1"], "[0, 1)"),
    "negative sparsity": (["run", *LENET, "--sparsity=-0.1"], "[0, 1)"),
    "NaN": (["run", *LENET, "--sparsity", "nan"], "[0, 1)"),
    "no number": (["run", *LENET, "--sparsity", "many"], "'many'"),
    "no sparsity of blocks": (["run", *LENET, "--granularity", "4x4"], "--sparsity is missing"),
    "a sparsity of another pattern": (
        ["run", *LENET, "--granularity", "2:4", "--sparsity", "0.9"],
        "'2:4' removes 0.5",
    ),
    "no sparsity": (["run", *LENET], "--sparsity is missing: give the fraction"),
    "command": (["rnu"], "Did you mean 'run'"),
    "flag": (["run", *LENET, "--sparsty", "0.5"], "--sparsity"),
    "model": (["run", "--model", "vgg-e", *HALF], "did you mean"),
    "data set": ([*RUN_HALF, "--dataset", "mnits"], "did you mean 'mnist'"),
    "model on another set": (["run", "--model", "lstm-s", "--dataset", "cifar-10", *HALF], "lstm"),
    "missing data": (["run", "--model", "vgg-d", *HALF], "--data-dir"),
    "data folder": ([*RUN_HALF, "--dataset", "fashion-mnist", "--data-dir", "no"], "not exist"),
    "protocol": ([*RUN_HALF, "--protocol", "redrawn"], "did you mean 'redraw'"),
    "initializer": ([*RUN_HALF, "--init", "vsh"], "did you mean 'vs-h'"),
    "other initializer": ([*RUN_HALF, "--init-train", "rn"], "redraw"),
    "reduction": ([*RUN_HALF, "--reduction", "sum"], "abs_of_sum"),
    "scope": ([*RUN_HALF, "--scope", "local"], "global"),
    "optimizer": ([*RUN_HALF, "--optimizer", "adm"], "did you mean 'adam'"),
    "schedule": ([*RUN_HALF, "--schedule", "shrt"], "did you mean 'short'"),
    "iterations": ([*RUN_HALF, "--iterations", "0"], "at least 1"),
    "learning rate": ([*RUN_HALF, "--lr", "nan"], "lr is nan"),
    "drops": ([*RUN_HALF, "--lr-drops", "1000;2000"], "with commas"),
    "batch": ([*RUN_HALF, "--batch-size", "100000"], "ask for fewer"),
    "scoring batches": ([*RUN_HALF, "--score-batches", "1000"], "ask for fewer"),
    "seed": ([*RUN_HALF, "--seed", "-1"], "seed is -1"),
    "device": ([*RUN_HALF, "--device", "gpu"], "'gpu'"),
    "threads": ([*RUN_HALF, "--threads", "0"], "threads is 0"),
    "own file": (["run", "--model", "mine_wrong.py:small", *HALF], "'mine_wrong:small'"),
    "own file alone": (["run", "--model", "mine_wrong.py", *HALF], "such as mine_wrong:build"),
    "own module": (["run", "--model", "mine_not:small", *HALF], "no module 'mine_not'"),
    "own function": (["run", "--model", "mine_wrong:smal", *HALF], "did you mean 'small'"),
    "own classes": (["run", "--model", "mine_wrong:narrow", *HALF], "(2, 10)"),
    "own nothing": (["run", "--model", "mine_wrong:nothing", *HALF], "NoneType"),
    "nothing to prune": (["run", "--model", "mine_wrong:bare", *HALF], "no prunable parameters"),
    "prune nothing": (["prune", *LENET, "--sparsity", "0", "--out", "m"], "sparsity is 0"),
    "prune nowhere": (PRUNE, "--out"),
    "prune by training": ([*PRUNE, "--out", "m", "--method", "lwc"], "use snip run --method lwc"),
    "method and layer": (["run", "--model", "lstm-s", "--method", "svd", *HALF], "cannot take"),
    "method and option": (
        [*RUN_HALF, "--method", "obd", "--scope", "erk"],
        "leave this option out",
    ),
    "prune into a folder": ([*PRUNE, "--out", "."], "is a folder"),
    "prune to a name too long": (
        [*PRUNE, "--out", "m" * 300],
        "cannot be used: File name too long",
    ),
    "prune under a file": ([*PRUNE, "--out", "mine_wrong.py/m"], "inside a file"),
    "no weights": ([*PRUNE, "--out", "m", "--weights", "none.st"], "no file none.st"),
    "torn weights": ([*PRUNE, "--out", "m", "--weights", "mine_wrong.py"], "damaged"),
    "weights and redraw": (
        [*PRUNE, "--out", "m", "--weights", "mine_wrong.py", "--protocol", "redraw"],
        "use one of them",
    ),
    "demo percentage": (["demo", "--sparsity", "95"], "write 0.95"),
    "demo of nothing": (["demo", "--sparsity", "0"], "sparsity is 0"),
    "demo engine": (["demo", "--engine", "spars"], "did you mean 'sparse'"),
    "inspect nothing": (["inspect", "none"], "no file none"),
    "inspect a folder": (["inspect", "."], "no run folder"),
    "inspect a text": (["inspect", "mine_wrong.py"], "neither masks nor weights"),
}


@pytest.mark.parametrize(("arguments", "phrase"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_a_sentence_and_changes_nothing(
    snip: Snip, arguments: list[str], phrase: str
) -> None:
    Path("mine_wrong.py").write_text(OWN_NETWORK)
    code, out, error = snip(*arguments)
    assert (code, out) == (2, "")
    assert error.startswith("error: ")
    assert phrase in error
    assert error.count("\n") == 1
    left = [name for name in files() if "__pycache__" not in name]
    assert left == ["mine_wrong.py"]


@pytest.mark.parametrize("name", ["masks.safetensors", "checkpoint.pt", "selected.safetensors"])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.999])
def test_inspect_refuses_a_torn_file(
    snip: Snip, finished_run: Path, name: str, share: float
) -> None:
    whole = (finished_run / name).read_bytes()
    Path(name).write_bytes(whole[: int(len(whole) * share)])
    code, out, error = snip("inspect", name)
    assert (code, out) == (2, "")
    assert error.startswith("error: ")
    assert name in error


def test_inspect_runs_no_code_of_a_file(snip: Snip) -> None:
    torch.save(build("lenet-300-100"), "whole_model.pt")  # a pickle of classes
    code, _, error = snip("inspect", "whole_model.pt")
    assert code == 2
    assert "without running code" in error


def test_a_diverging_run_is_a_sentence(snip: Snip) -> None:
    code, _, error = snip(*RUN, "--lr", "1e30")
    assert code == 2
    assert "Try a smaller lr" in error
    assert "Traceback" not in error
