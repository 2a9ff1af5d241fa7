"""`snip prune` and `snip inspect`."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from cli_fixtures import OWN_NETWORK, PRUNE, SMALL, Snip
from safetensors.torch import load_file, save_file

from snip import Masks
from snip.common.lock import locked
from snip.masks import Provenance
from snip.models import build

pytestmark = pytest.mark.usefixtures("empty_folder")


def test_prune_saves_the_masks_that_a_run_trains_with(snip: Snip, finished_run: Path) -> None:
    flags = ["--model", "lenet-300-100", "--sparsity", "0.95", "--score-batch-size", "20"]
    code, out, _ = snip("prune", *flags, "--out", "m.safetensors", "--save-weights", "w.st")
    assert code == 0
    assert "fc1.weight" in out or "266,610" in out
    masks = Masks.load("m.safetensors")
    assert masks == Masks.load(finished_run / "masks.safetensors")
    weights = load_file("w.st")
    assert all(not weights[name][~mask].any() for name, mask in masks.items())


def test_prune_takes_weights(snip: Snip) -> None:
    model = build("lenet-300-100", seed=5)
    save_file(model.state_dict(), "in.safetensors")
    torch.save(model.state_dict(), "in.pt")
    flags = ["prune", "--model", "lenet-300-100", "--sparsity", "0.99"]
    for source in ("in.safetensors", "in.pt"):
        assert snip(*flags, "--weights", source, "--out", f"{source}.m", "--seed", "5")[0] == 0
    assert snip(*flags, "--out", "drawn.m", "--seed", "5")[0] == 0
    assert Masks.load("in.safetensors.m") == Masks.load("in.pt.m") == Masks.load("drawn.m")
    save_file(build("lenet-5-caffe").state_dict(), "other.safetensors")
    code, _, error = snip(*flags, "--weights", "other.safetensors", "--out", "no.m")
    assert code == 2
    assert "another network" in error
    assert not Path("no.m").exists()


def test_output_takes_the_place_of_ordinary_files_only(snip: Snip) -> None:
    os.mkfifo("pipe")
    code, _, error = snip(*PRUNE, "--out", "pipe")
    assert code == 2
    assert "no ordinary file" in error
    assert Path("pipe").is_fifo()


def test_inspect_a_run(snip: Snip, finished_run: Path) -> None:
    code, out, _ = snip("inspect", finished_run)
    assert code == 0
    assert "finished" in out
    assert "13,331 of 266,610" in out
    assert "not zero" not in out  # the report is of the masks, not of a fresh draw
    data = json.loads(snip("inspect", finished_run, "--json")[1])
    assert not any("not zero" in warning for warning in data["report"]["warnings"])
    assert data["kind"] == "run"
    assert data["result"]["kept"] == data["masks"]["kept"] == 13_331
    assert data["config"]["model"] == "lenet-300-100"
    assert sum(p["kept"] for p in data["parameters"]) == 13_331


def test_inspect_masks(snip: Snip, finished_run: Path) -> None:
    code, out, _ = snip("inspect", finished_run / "masks.safetensors")
    assert code == 0
    assert "95.00%" in out
    data = json.loads(snip("inspect", finished_run / "masks.safetensors", "--json")[1])
    assert data["kind"] == "masks"
    assert data["provenance"]["method"] == "snip"
    assert data["report"] is not None


def test_inspect_masks_of_an_unknown_network(snip: Snip) -> None:
    evil = Provenance(model="evil.module:function")
    masks = Masks({"a.weight": torch.tensor([[True, False]])}, evil)
    masks.save("m.safetensors")
    code, out, _ = snip("inspect", "m.safetensors")
    assert code == 0
    assert "a.weight" in out
    assert "50.00%" in out
    assert json.loads(snip("inspect", "m.safetensors", "--json")[1])["report"] is None


@pytest.mark.parametrize(
    ("name", "kind"), [("selected.safetensors", "weights"), ("checkpoint.pt", "checkpoint")]
)
def test_inspect_counts_the_zeros_of_weights(
    snip: Snip, finished_run: Path, name: str, kind: str
) -> None:
    assert snip("inspect", finished_run / name)[0] == 0
    data = json.loads(snip("inspect", finished_run / name, "--json")[1])
    assert data["kind"] == kind
    assert data["total"] == 266_610
    assert data["kept"] <= 13_331
    assert data["sparsity"] == pytest.approx(0.95, abs=0.001)


def test_inspect_draws_a_picture(snip: Snip, finished_run: Path) -> None:
    assert snip("inspect", finished_run, "--picture", "p.png")[0] == 0
    assert Path("p.png").read_bytes().startswith(b"\x89PNG")


def test_inspect_says_how_far_a_run_is(snip: Snip, finished_run: Path) -> None:
    Path("half").mkdir()
    for name in ("config.json", "metrics.jsonl", "masks.safetensors"):
        (Path("half") / name).write_bytes((finished_run / name).read_bytes())
    code, out, _ = snip("inspect", "half")
    assert code == 0
    assert "stopped, 60 of 60 iterations evaluated; `snip run` with the same flags goes on" in out
    assert json.loads(snip("inspect", "half", "--json")[1])["finished"] is False
    with locked(Path("half")):
        out = snip("inspect", "half")[1]
    assert "running, 60 of 60 iterations evaluated\n" in out
    assert snip("inspect", finished_run)[1].count("iterations evaluated") == 0


def test_inspect_says_in_which_phase_a_run_is(snip: Snip, finished_run: Path) -> None:
    """As `snip runs` and the page say it: no other training counts as the run's own."""
    phase = Path("half/phases/round-1")
    phase.mkdir(parents=True)
    shutil.copy(finished_run / "config.json", "half")
    shutil.copy(finished_run / "metrics.jsonl", phase)
    out = snip("inspect", "half")[1]
    assert "stopped, round-1: 60 iterations evaluated; `snip run`" in out
    assert " 0 of " not in out
    data = json.loads(snip("inspect", "half", "--json")[1])
    assert data["phase"] == "round-1"
    assert data["last_evaluation"]["iteration"] == 60


@pytest.mark.parametrize("text", ["[", "[]", "{}", '{"model": "vgg-d"}', '{"modle": "vgg-d"}'])
def test_inspect_refuses_a_damaged_configuration(snip: Snip, text: str) -> None:
    Path("run").mkdir()
    Path("run/config.json").write_text(text)
    code, out, error = snip("inspect", "run")
    assert (code, out) == (2, "")
    assert "run/config.json is damaged" in error


def test_masks_that_are_not_of_the_network_they_name(snip: Snip) -> None:
    named = Provenance(model="lenet-300-100", dataset="mnist")
    Masks({"a": torch.tensor([True])}, named).save("m.safetensors")
    assert snip("inspect", "m.safetensors")[0] == 0
    code, _, error = snip("inspect", "m.safetensors", "--model", "lenet-300-100")
    assert code == 2
    assert "another model" in error


def test_inspect_of_ones_own_network_says_how_to_name_it(snip: Snip) -> None:
    Path("mine_to_name.py").write_text(OWN_NETWORK)
    own = ["--model", "mine_to_name:small"]
    assert snip("run", *own, "--sparsity", "0.9", *SMALL, "--folder", "it")[0] == 0
    for path in ("it", "it/masks.safetensors"):
        assert "--model mine_to_name:small" in snip("inspect", path)[1]
        code, out, _ = snip("inspect", path, *own)
        assert code == 0
        assert "--model" not in out
