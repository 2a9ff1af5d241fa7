"""Methods and sanity controls from the command line."""

import json
from pathlib import Path

import pytest
from cli_fixtures import LENET, RUN, Snip

from snip.cli.flags import rows as flag_rows
from snip.masks import Masks
from snip.runs import RunConfig

pytestmark = pytest.mark.usefixtures("empty_folder")
PRUNE = ["prune", *LENET, "--sparsity", "0.9", "--out", "m"]


@pytest.mark.parametrize("method", ["random", "erk", "grasp", "snip-it"])
def test_masks_say_which_method_made_them_in_how_many_rounds(snip: Snip, method: str) -> None:
    code, out, _ = snip(*PRUNE, "--method", method)
    assert code == 0
    assert "26,661" in out
    masks = Masks.load("m")
    assert masks.kept == 26_661
    assert masks.provenance.method == method
    assert masks.provenance.rounds == (7 if method == "snip-it" else 1)
    first, _, _ = snip(*PRUNE, "--method", method)  # the same command makes the same masks
    assert first == 0
    assert Masks.load("m") == masks


def test_a_run_of_a_method_with_a_control(snip: Snip) -> None:
    code, _, _ = snip(*RUN, "--method", "magnitude", "--control", "shuffle")
    assert code == 0
    (folder,) = Path("runs").iterdir()
    assert "_magnitude-0.95_shuffle_" in folder.name
    provenance = Masks.load(folder / "masks.safetensors").provenance
    assert (provenance.method, provenance.control) == ("magnitude", "shuffle")
    assert json.loads((folder / "result.json").read_text())["config"]["control"] == "shuffle"


def test_slips_in_names_are_corrected(snip: Snip) -> None:
    for flag, slip, meant in (("--method", "syn-flow", "synflow"), ("--control", "inv", "invert")):
        code, _, error = snip(*PRUNE, flag, slip)
        assert code != 0
        assert f"did you mean '{meant}'?" in error
    assert not Path("m").exists()


def test_a_method_that_trains_has_its_own_rate_unless_a_flag_says_so(snip: Snip) -> None:
    plan = ["run", *LENET, "--sparsity", "0.9", "--method", "dns", "--dry-run"]
    usual = RunConfig("lenet-300-100", 0.9, method="dns")
    code, out, _ = snip(*plan)
    assert code == 0
    assert usual.folder_name in out
    assert usual.training.lr == 0.02
    _, out, _ = snip(*plan, "--lr", "0.1")
    assert usual.folder_name not in out


@pytest.mark.usefixtures("empty_folder")
def test_a_pattern_needs_no_sparsity(snip: Snip) -> None:
    plan = ["run", *LENET, "--granularity", "2:4", "--dry-run"]
    half = RunConfig("lenet-300-100", 0.5, granularity="2:4")
    for more in ([], ["--sparsity", "0.5"]):
        code, out, _ = snip(*plan, *more)
        assert code == 0
        assert half.folder_name in out
    code, out, _ = snip(*plan, "--sparsity", "0")  # the dense reference is the same for all
    assert code == 0
    assert RunConfig("lenet-300-100", 0).folder_name in out
    code, _, _ = snip("prune", *LENET, "--granularity", "1:4", "--out", "m")
    assert code == 0
    assert Masks.load("m").provenance.sparsity_asked == 0.75


def test_help_says_the_rate_of_methods_that_train() -> None:
    shown = flag_rows()["lr"]["shown"]
    assert shown.startswith("0.1 for sgd; ")
    assert "0.02 for methods that prune a trained network, on mnist" in shown
    assert "cifar-10" not in shown
