"""Outputs that no input reaches are repaired or counted, if the loss depends on them."""

import pytest
import torch
import torch.nn.functional as F
from connectivity_parts import heard
from torch import nn

import snip
from snip.network.calls import Call
from snip.network.paths import Follower, Reach, follow


class Mapped(nn.Module):
    """Returns logits, and with them a map of its attention."""

    def __init__(self, way="beside"):
        super().__init__()
        self.attend, self.last = nn.MultiheadAttention(16, 2, batch_first=True), nn.Linear(16, 4)
        self.way = way

    def forward(self, x):
        y, weights = self.attend(x, x, x)
        if self.way == "through":  # the gradient of the logits passes through the map
            y = weights @ y
        map_ = weights.detach() if self.way == "detached" else weights
        return self.last((x + 1e-3 * y).mean(1)), map_


def pruned(model, loss):
    torch.manual_seed(0)
    x = torch.randn(20, 12, 16)
    return heard(lambda: snip.prune(model, x, sparsity=0.9, loss_fn=loss))


def first_alone(model, batch):
    return F.cross_entropy(model(batch)[0], torch.arange(20) % 4)


def both(model, batch):
    logits, weights = model(batch)
    return F.cross_entropy(logits, torch.arange(20) % 4) + 1e-9 * weights.pow(2).sum()


@pytest.mark.parametrize("way", ["beside", "through", "detached"])
def test_a_map_that_the_loss_ignores_does_not_change_the_selection(way):
    torch.manual_seed(0)
    masks, said = pruned(Mapped(way), first_alone)
    assert masks.provenance.floor == 0, said
    assert not any("outputs are not reached" in s for s in said)


def test_an_output_that_the_loss_depends_on_counts():
    torch.manual_seed(0)
    _, said = pruned(Mapped(), both)
    assert "of 148 outputs are not reached" in said[0]


def test_no_hook_is_left_on_a_parameter_that_a_model_returns():
    class Own(nn.Sequential):
        def forward(self, x):
            return super().forward(x), self[0].weight

    model = Own(nn.Linear(16, 4))
    pruned(model, lambda m, b: F.cross_entropy(m(b.mean(1))[0], torch.arange(20) % 4))
    assert not model[0].weight._backward_hooks


def test_a_branch_that_the_loss_ignores_is_warned_of_once():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.main, self.side = nn.Linear(16, 4), nn.Linear(16, 4)

        def forward(self, x):
            return self.main(x.mean(1)), self.side(x.mean(1))

    _, said = pruned(Branches(), first_alone)
    assert len(said) == 1
    assert "the loss does not depend on 'side.weight'" in said[0]


def test_outputs_that_no_input_reaches_are_counted():
    model = nn.Sequential(nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 20))
    batch = torch.randn(60, 40), torch.arange(60) % 3
    masks, said = heard(lambda: snip.prune(model, batch, sparsity=0.9))
    dead = len(follow(model, masks, batch[0]).dead_outputs)
    assert 0 < dead < 20
    assert f"{dead} of 20 outputs are not reached by any input" in said[0]
    assert "Tried in vain: scope='erk'." in said[0]


def test_unreached_outputs_are_repaired_if_a_floor_reaches_them_all():
    class TwoHeads(nn.Module):
        def __init__(self):
            super().__init__()
            self.many, self.one = nn.Linear(30, 3, bias=False), nn.Linear(30, 1, bias=False)

        def forward(self, x):
            return torch.cat([self.many(x), 1e-3 * self.one(x)], -1)

    model, batch = TwoHeads(), (torch.randn(50, 30), torch.arange(50) % 4)
    masks, said = heard(lambda: snip.prune(model, batch, sparsity=0.8))
    assert len(said) == 1
    assert "1 of 4 outputs are not reached" in said[0]
    assert "pruned with floor=0.02 instead" in said[0]
    assert "a path to 4 of 4 outputs" in said[0]
    assert follow(model, masks, batch[0]).dead_outputs == ()


def test_outputs_of_a_large_layer_are_counted_as_those_of_a_small_one():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2048, 900), nn.ReLU(), nn.Linear(900, 1200, bias=False))
    masks = {name: torch.rand(p.shape) < 4e-4 for name, p in model.named_parameters()}
    hidden = masks["0.weight"].any(1)  # units that an input reaches
    reached = int((masks["2.weight"] & hidden).any(1).sum())
    with Follower(model, Call((torch.ones(3, 2048),), {}), 0) as follower:
        assert follower.reached(masks) == Reach(reached, 1200)
        assert len(follower.paths(masks).dead_outputs) == 1200 - reached
