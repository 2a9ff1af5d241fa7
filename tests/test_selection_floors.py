"""Floors, which keep some of every layer, and selections within what earlier masks left."""

import pytest
import torch

import snip
from snip.runs import RunConfig


def test_a_floor_keeps_every_layer_alive_and_the_total_exact():
    scores = {
        "a.weight": torch.full((100,), 5.0),
        "b.weight": torch.full((50,), 1e-3),
        "c.weight": torch.arange(50) * 1e-6,
    }
    masks = snip.select(scores, sparsity=0.9, floor=3)
    assert (masks.kept, int(masks["b.weight"].sum()), int(masks["c.weight"].sum())) == (20, 3, 3)
    assert masks["c.weight"][-3:].all()
    fraction = snip.select(scores, sparsity=0.5, floor=0.1)
    assert fraction["c.weight"].sum() == 5
    assert fraction.kept == 100
    with pytest.raises(snip.InputError, match="lower one of them"):
        snip.select(scores, sparsity=0.99, floor=3)
    with pytest.raises(snip.InputError, match="scope='global'"):
        snip.select(scores, sparsity=0.5, floor=3, scope="erk")


def test_staying_within_masks():
    scores = {"a": torch.tensor([4.0, 3.0, 2.0, 1.0])}
    within = {"a": torch.tensor([False, True, False, True])}
    assert snip.select(scores, sparsity=0.75, within=within)["a"].tolist() == [
        False,
        True,
        False,
        False,
    ]
    zero = {"a": torch.zeros(4)}
    assert snip.select(zero, sparsity=0.5, within=within)["a"].tolist() == [
        False,
        True,
        False,
        True,
    ]
    with pytest.raises(snip.InputError, match=r"at least 0\.5"):
        snip.select(scores, sparsity=0.25, within=within)


def test_a_within_of_another_shape_is_refused():
    with pytest.raises(snip.InputError, match=r"scores' shape \(3, 3\)"):
        snip.select({"a": torch.rand(3, 3)}, sparsity=0, within={"a": torch.ones(2, 2).bool()})
    with pytest.raises(snip.InputError, match="bool mask"):
        snip.select({"a": torch.rand(3)}, sparsity=0, within={"a": torch.ones(3)})


def test_a_floor_asks_no_more_than_is_left():
    scores = {"a.weight": torch.rand(10), "b.weight": torch.rand(10)}
    within = {"a.weight": torch.zeros(10).bool()}
    masks = snip.select(scores, sparsity=0.8, floor=2, within=within)
    assert (masks["a.weight"].sum(), masks["b.weight"].sum()) == (0, 4)


def test_the_sparsity_that_an_error_names_works():
    within = {"a": torch.arange(7) < 3}
    with pytest.raises(snip.InputError) as caught:
        snip.select({"a": torch.rand(7)}, sparsity=0.1, within=within)
    named = float(str(caught.value).split("at least ")[1].split()[0])
    assert snip.select({"a": torch.rand(7)}, sparsity=named, within=within).kept == 3


def test_a_floor_beside_a_parameter_that_is_a_single_number():
    scores = {"a.scale": torch.tensor(0.0), "b.weight": torch.rand(40, 5)}
    masks = snip.select(scores, sparsity=0.5, floor=0.1)
    assert masks.kept == 100
    assert masks["a.scale"].shape == ()
    within = {"a.scale": torch.tensor(True)}
    assert snip.select(scores, sparsity=0.9, floor=1, within=within)["a.scale"]


def test_a_floor_is_a_fraction_or_a_whole_count():
    scores = {"a.weight": torch.rand(4, 5), "b.weight": torch.rand(5, 2)}
    with pytest.raises(snip.InputError, match=r"floor is 1\.5: from 1 on it is a count"):
        snip.select(scores, sparsity=0.5, floor=1.5)
    with pytest.raises(snip.InputError, match=r"floor is 1\.5"):
        RunConfig("lenet-300-100", 0.5, floor=1.5)
