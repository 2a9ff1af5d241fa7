"""Sanity controls: masks that know less, at exactly the same densities."""

import copy
import dataclasses

import pytest
import torch
from expected_warnings import expects
from networks import make

import snip
from snip.data import load
from snip.methods import METHODS
from snip.methods.controls import CONTROLS, inverted, randomized, shuffled
from snip.models import build
from snip.runs import RunConfig, prepare
from snip.selection.granularity import checked_granularity
from snip.training import TrainConfig

CONFIG = RunConfig("lenet-300-100", 0.95, train=TrainConfig(iterations=100, lr_drops=()))


def masks_of(kind="conv", sparsity=0.6):
    model, batch = make(kind)
    return snip.prune(model, batch, sparsity=sparsity)


def test_shuffling_keeps_the_count_of_every_parameter():
    masks = masks_of()
    other = shuffled(masks)
    assert other != masks
    assert all(other[name].sum() == mask.sum() for name, mask in masks.items())
    assert other.provenance.control == "shuffle"
    assert other.provenance.method == "snip"


def test_random_masks_keep_the_count_of_every_layer():
    masks = masks_of()
    other = randomized(masks)

    def counts(masks):
        layers = dict.fromkeys(name.partition(".")[0] for name in masks)
        return [sum(int(m.sum()) for n, m in masks.items() if n.startswith(k)) for k in layers]

    assert other != masks
    assert counts(other) == counts(masks)
    assert other.provenance.control == "random"


def test_controls_repeat_with_the_seed():
    masks = masks_of()
    for control in (shuffled, randomized):
        drawn = []
        for seed in (1, 2, 1):
            torch.manual_seed(seed)
            drawn.append(control(masks))
        assert drawn[0] == drawn[2]
        assert drawn[0] != drawn[1]


@pytest.mark.parametrize("method", ["snip", "grasp", "magnitude"])
@expects("losses")
def test_inverted_scores_keep_the_lowest(method):
    model, batch = make("mlp")
    scores = METHODS[method].score(model, batch)
    masks = snip.prune(model, batch, sparsity=0.75, method=inverted(method), biases="keep")
    kept = torch.cat([scores[name][mask] for name, mask in masks.items()])
    gone = torch.cat([scores[name][~mask] for name, mask in masks.items()])
    assert kept.max() <= gone.min()
    assert masks.provenance.method == f"inverted {method}"


@expects("losses", "rounds")
def test_inverted_rounds_remove_the_highest_first():
    model, batch = make("mlp")
    scores = METHODS["iter-snip"].score(model, batch)
    plain = snip.prune(copy.deepcopy(model), batch, sparsity=0.8, method="iter-snip")
    other = snip.prune(model, batch, sparsity=0.8, method=inverted("iter-snip"))
    assert other.kept == plain.kept
    highest = snip.select(scores, sparsity=0.98)  # about what the first round takes away
    assert all(not other[name][mask].any() for name, mask in highest.items())


@pytest.fixture(scope="module")
def mnist():
    return load("mnist")


@pytest.mark.parametrize("control", [name for name in CONTROLS if name != "redraw"])
@expects("losses")
def test_a_run_trains_the_scored_weights_under_the_controls_masks(mnist, control):
    config = dataclasses.replace(CONFIG, control=control)
    assert f"_snip-0.95_{control}_" in config.folder_name
    model, masks = prepare(config, mnist)
    _, plain = prepare(CONFIG, mnist)
    assert masks != plain
    assert masks.kept == plain.kept
    assert (masks.provenance.method, masks.provenance.control) == ("snip", control)
    drawn = build("lenet-300-100", seed=0).state_dict()
    for name, mask in masks.items():
        assert torch.equal(model.get_parameter(name).detach(), drawn[name] * mask)
        if control == "shuffle":
            assert int(mask.sum()) == int(plain[name].sum())
    assert prepare(config, mnist)[1] == masks


def test_redrawn_weights_are_the_protocol_of_that_name():
    redrawn = dataclasses.replace(CONFIG, control="redraw")
    assert redrawn == dataclasses.replace(CONFIG, protocol="redraw")
    assert redrawn.folder_name == dataclasses.replace(CONFIG, protocol="redraw").folder_name


def test_no_control_renames_no_folder_and_an_unknown_one_is_refused():
    assert "control" not in CONFIG.identity()
    assert dataclasses.replace(CONFIG, sparsity=0.0, control="shuffle").identity() == (
        dataclasses.replace(CONFIG, sparsity=0.0).identity()
    )
    with pytest.raises(snip.InputError, match="unknown control 'shufle': did you mean 'shuffle'"):
        dataclasses.replace(CONFIG, control="shufle")


@pytest.mark.parametrize("control", ["shuffle", "random"])
@pytest.mark.parametrize(
    ("granularity", "sparsity"), [("4x4", 0.9), ("2:4", 0.5), ("channel", 0.9)]
)
@expects("pattern")
def test_a_run_shuffles_what_its_method_keeps_whole(mnist, control, granularity, sparsity):
    config = RunConfig("lenet-5-caffe", sparsity, granularity=granularity, train=CONFIG.train)
    _, plain = prepare(config, mnist)
    model, masks = prepare(dataclasses.replace(config, control=control), mnist)
    assert masks != plain
    assert masks.provenance.granularity == granularity
    # Blocks at a border are smaller, so that a few connections may be left over.
    assert plain.kept - 100 <= masks.kept <= plain.kept
    whole = checked_granularity(granularity).on(model, torch.zeros(1, 1, 28, 28))
    scores = {name: mask.float() for name, mask in masks.items()}
    again = whole.keep(scores, masks.kept)  # which selects whole blocks, n of m, or units
    assert all(torch.equal(again[name], mask) for name, mask in masks.items())


@pytest.mark.parametrize("control", [shuffled, randomized])
def test_controls_keep_what_a_norm_divides_by(control):
    torch.manual_seed(0)
    layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(6, 16))
    model = torch.nn.Sequential(layer, torch.nn.ReLU(), torch.nn.Linear(16, 3))
    batch = torch.randn(8, 6), torch.arange(8) % 3
    masks = snip.prune(copy.deepcopy(model), batch, sparsity=0.8)
    other = control(masks, model=model)
    assert other.kept == masks.kept
    other.apply(model)  # which refuses masks that leave nothing of a row
    assert torch.isfinite(model(batch[0])).all()
