"""A path from input to output: prune looks for one, and repairs a network that would lose it."""

import re

import pytest
import torch
from connectivity_parts import SPARSITY, connected, heard, reach
from expected_warnings import expects
from networks import chain
from torch import nn

import snip
from snip.masks import Provenance, empty_layers
from snip.network.calls import Call
from snip.network.network import Network
from snip.network.paths import Reach
from snip.selection.repair import with_a_path


def test_a_lost_path_is_repaired_at_the_same_sparsity_and_said():
    model, batch = chain()
    masks, said = heard(lambda: snip.prune(model, batch, sparsity=SPARSITY))
    assert len(said) == 1
    assert re.search(r"nothing is left of '3\.weight'.*no path leads from.*pruned with", said[0])
    assert masks.kept == round(masks.total * (1 - SPARSITY))
    assert connected(model, masks, batch[0])
    assert snip.held_masks(model) == masks


@expects("losses")
def test_what_the_warning_says_was_done_can_be_asked_for():
    model, batch = chain()
    masks, (said,) = heard(lambda: snip.prune(model, batch, sparsity=SPARSITY))
    cure = re.search(r"pruned with (\w+)=(\S+) instead", said)
    value = cure[2].strip("'") if cure[1] == "scope" else float(cure[2])
    again, batch = chain()
    assert snip.prune(again, batch, sparsity=SPARSITY, **{cure[1]: value}) == masks


def test_whoever_asks_for_no_floor_gets_none_and_hears_the_cure_that_works():
    model, batch = chain()
    scores = snip.connection_sensitivity(model, batch)
    masks, said = heard(lambda: snip.prune(model, batch, sparsity=SPARSITY, floor=0))
    assert masks == snip.select(scores, sparsity=SPARSITY)
    assert not connected(model, masks, batch[0])
    cure = re.search(r"cannot learn\. With (\w+)=(\S+) a path.* is left: that was tried", said[0])
    value = cure[2].strip("'") if cure[1] == "scope" else float(cure[2])
    other = snip.select(scores, sparsity=SPARSITY, **{cure[1]: value})
    assert connected(model, other, batch[0])


def test_a_healthy_network_is_ranked_as_ever():
    model, batch = chain()
    scores = snip.connection_sensitivity(model, batch)
    masks, said = heard(lambda: snip.prune(model, batch, sparsity=0.5))
    assert masks == snip.select(scores, sparsity=0.5)
    assert said == []


def test_a_flop_budget_is_not_repaired_but_the_loss_is_said():
    model, batch = chain()
    with torch.no_grad():
        model[3].weight.mul_(1e-12)  # the gradients of all others, and with them their scores
    masks, said = heard(lambda: snip.prune(model, batch, sparsity=0.999, budget="flops"))
    assert masks.provenance.budget == "flops"
    assert any("no path leads from the input to the output: the network cannot" in s for s in said)


def test_layers_that_do_not_meet_are_found_though_none_is_empty():
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 2, bias=False))
    first, second = torch.zeros(3, 3).bool(), torch.zeros(2, 3).bool()
    first[0, 0] = second[0, 1] = True
    masks = snip.Masks({"0.weight": first, "1.weight": second})
    call = Call((torch.ones(5, 3),), {})
    same, said = heard(lambda: with_a_path(Network.of(model), masks, call, None, repair=True))
    assert same is masks
    assert "too little is left of '0.weight', '1.weight'" in said[0]
    assert "no path" in said[0]
    assert reach(model, masks, call) == Reach(0, 2)
    second[1, 0] = True
    met = snip.Masks({"0.weight": first, "1.weight": second})
    assert reach(model, met, call) == Reach(1, 2)


def test_an_empty_layer_beside_a_shortcut_is_said_to_be_passed_by():
    class Skip(nn.Module):
        def __init__(self):
            super().__init__()
            self.side, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x):
            return self.last(x + 1e-4 * self.side(x))

    torch.manual_seed(0)
    batch = torch.randn(8, 6), torch.arange(8) % 3
    masks, said = heard(lambda: snip.prune(Skip(), batch, sparsity=0.8))
    assert empty_layers(masks) == ["side.weight"]
    assert "nothing is left of 'side.weight'" in said[0]
    assert "passes by another way" in said[0]


def deep(width=64, depth=12):
    """A chain of sigmoids, whose layers rank their connections by few units each."""
    torch.manual_seed(0)
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.Sigmoid())]
    batch = torch.randn(20, width), torch.arange(20) % 5
    return nn.Sequential(*layers, nn.Linear(width, 5, bias=False)), batch


def test_a_path_is_looked_for_though_every_layer_keeps_many():
    model, batch = deep()
    masks, said = heard(lambda: snip.prune(model, batch, sparsity=0.98, scope="erk"))
    fewest = min(int(mask.sum()) for mask in masks.values() if mask.ndim > 1)
    assert fewest > 8
    assert not connected(model, masks, batch[0])
    assert "some is left of every layer" in said[0]
    assert "no path leads from the input to the output" in said[0]


def test_a_scope_that_was_chosen_is_kept_and_only_cures_that_work_are_named():
    model, batch = deep()
    masks, said = heard(lambda: snip.prune(model, batch, sparsity=0.98, scope="layer"))
    assert masks.provenance.scope == "layer"
    assert not connected(model, masks, batch[0])
    cure = re.search(
        r"cannot learn\. With (.*) a path.* is left: that was tried\. Tried in vain: (.*)\.",
        said[0],
    )
    for settings, works in ((cure[1], True), *((failed, False) for failed in cure[2].split("; "))):
        again, batch = deep()
        scores = snip.connection_sensitivity(again, batch)
        asked = {"sparsity": 0.98, "scope": "layer"} | eval(f"dict({settings})")
        assert connected(again, snip.select(scores, **asked), batch[0]) == works, settings


@pytest.mark.parametrize(("scope", "tried"), [("layer", 3), ("global", 1)])
def test_no_selection_is_made_that_is_not_tried(scope, tried):
    """With some outputs reached, more connections are never tried, and so never selected.

    Nor is a floor that each layer has already: in one ranking it would select the same masks.
    """
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 2, bias=False))
    first, second = torch.zeros(3, 3).bool(), torch.zeros(2, 3).bool()
    first[0, 0] = second[0, 0] = True
    about = Provenance(scope=scope)
    masks = snip.Masks({"0.weight": first, "1.weight": second}, about)
    asked = []

    def select(**settings):
        asked.append(settings)
        return masks

    with pytest.warns(snip.SnipWarning, match="Tried in vain"):
        with_a_path(Network.of(model), masks, Call((torch.ones(5, 3),), {}), select, repair=True)
    assert len(asked) == tried
    assert not any("sparsity" in settings for settings in asked)
