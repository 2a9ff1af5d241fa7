"""Granularities by name: in Python, in a run and on the command line, and slips that are told."""

import dataclasses

import pytest
import torch
from cli_fixtures import HALF, LENET
from granularity_parts import BATCH
from networks import Mlp

import snip
from snip.cli import main
from snip.runs import RunConfig
from snip.selection.granularity import checked_granularity


@pytest.mark.parametrize(
    ("text", "value"),
    [("element", snip.Element()), (" Channel", snip.Channel()), ("1:4", snip.NofM(1, 4)),
     ("4X8", snip.Block(4, 8))],
)  # fmt: skip
def test_names_are_values(text, value):
    assert checked_granularity(text) == value
    assert checked_granularity(value) is value
    assert str(value) == text.strip().lower()


@pytest.mark.parametrize(
    ("given_", "sentence"),
    [
        ("chanel", "did you mean 'channel'"),
        ("4x", "did you mean '4x4'"),
        ("4:4", "removes nothing"),
        ("0:4", "at least 1"),
        ("0x4", "at least 1"),
        (4, "give a name such as 'channel'"),
    ],
)
def test_slips_are_told_and_nothing_is_changed(given_, sentence):
    model = Mlp()
    before = {name: p.clone() for name, p in model.named_parameters()}
    with pytest.raises(snip.InputError, match=sentence):
        snip.prune(model, BATCH, sparsity=0.5, granularity=given_)
    assert snip.held_masks(model) is None
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())


@pytest.mark.parametrize(
    ("settings_", "sentence"),
    [
        ({"granularity": "channel", "sparsity": 0.5, "scope": "erk"}, "no scope, no floor and"),
        ({"granularity": "2:4", "floor": 3}, "no scope, no floor and"),
        ({"granularity": "2:4", "method": "erk"}, "no method with shares"),
        ({"granularity": "2:4", "budget": "flops"}, "no cost budget"),
        ({"granularity": "4x4"}, "sparsity is missing"),
    ],
)
def test_what_does_not_go_together_is_refused(settings_, sentence):
    with pytest.raises(snip.InputError, match=sentence):
        snip.prune(Mlp(), BATCH, **settings_)


def test_a_run_has_a_granularity_that_renames_no_older_folder():
    plain = RunConfig(model="lenet-300-100", sparsity=0.5)
    assert plain == RunConfig(model="lenet-300-100", sparsity=0.5, granularity="element")
    blocks = dataclasses.replace(plain, granularity="4X4")
    assert blocks.granularity == "4x4"
    assert blocks.folder_name != plain.folder_name
    assert RunConfig.from_dict(blocks.to_dict()) == blocks
    dense = dataclasses.replace(plain, sparsity=0)
    assert dataclasses.replace(dense, granularity="2:4").folder_name == dense.folder_name
    with pytest.raises(snip.InputError, match=r"'1:4' removes 0\.75"):
        dataclasses.replace(plain, granularity="1:4")
    with pytest.raises(snip.InputError, match="did you mean 'channel'"):
        dataclasses.replace(plain, granularity="channels")


@pytest.mark.usefixtures("empty_folder")
def test_the_command_line_prunes_in_any_granularity(tmp_path):
    prune = ["prune", *LENET, *HALF, "--out", str(tmp_path / "m.safetensors"), "--granularity"]
    for granularity in ("channel", "2:4", "4x4"):
        assert main([*prune, granularity]) == 0
        masks = snip.Masks.load(tmp_path / "m.safetensors")
        assert masks.provenance.granularity == granularity
    assert main([*prune, "5x"]) != 0
