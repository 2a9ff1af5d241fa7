"""Two commits side by side: ratios by hand, and turns that run with any version."""

import ast
from pathlib import Path

import against
import pytest
import torch
from against_turn import CASES

import snip

TURN = Path(against.__file__).with_name("against_turn.py")


def test_ratios_are_of_the_best_turns_and_of_pairs() -> None:
    this = [{"prune": 2.0}, {"prune": 1.0}, {"prune": 4.0}]
    other = [{"prune": 4.0, "gone": 1.0}, {"prune": 4.0, "gone": 1.0}, {"prune": 1.0, "gone": 1.0}]
    (row,) = against.rows_of("lenet-300-100", this, other)  # only what both versions did
    assert row["ratios"] == [0.5, 0.25, 4.0]
    assert (row["best"], row["median"]) == (1.0, 0.5)
    assert "0.25 to 4.00" in against.shown(row)


def test_a_turn_uses_only_public_names() -> None:
    """It runs with commits whose insides are others."""
    tree = ast.parse(TURN.read_text())
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    named = [getattr(node, "module", None) or node.names[0].name for node in imported]
    assert [name for name in named if name.split(".")[0] == "snip"] == ["snip"]
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "snip"
    }
    assert used <= set(snip.__all__)


@pytest.mark.parametrize(
    ("name", "count"),
    [("lenet-300-100", 266_610), ("lenet-5-caffe", 431_080), ("vgg-like", 15_245_130)],
)
def test_networks_are_those_of_the_paper(name: str, count: int) -> None:
    model = CASES[name].build()
    assert sum(p.numel() for p in snip.prunable_parameters(model).values()) == count
    assert model.eval()(torch.zeros(2, *CASES[name].shape)).shape == (2, 10)


def test_an_unknown_commit_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        against.main(["no-such-commit"])
    assert "there is no commit 'no-such-commit'" in capsys.readouterr().err
