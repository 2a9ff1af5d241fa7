"""A path from input to output: prune looks for one, and repairs a network that would lose it."""

import re
import warnings

import pytest
import torch
from networks import chain
from torch import nn

import snip
from snip.masks import empty_layers
from snip.paths.connectivity import connectivity, has_path, reached_outputs
from snip.selection.repair import with_a_path

SPARSITY = 0.99


def heard(work):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = work()
    return result, [str(w.message) for w in caught if w.category is snip.SnipWarning]


def connected(model, masks, inputs):
    return connectivity(model, masks, inputs).connected


def test_a_lost_path_is_repaired_at_the_same_sparsity_and_said():
    model, batch = chain()
    masks, said = heard(lambda: snip.prune(model, batch, sparsity=SPARSITY))
    assert len(said) == 1
    assert re.search(r"nothing is left of '3\.weight'.*no path leads from.*pruned with", said[0])
    assert masks.kept == round(masks.total * (1 - SPARSITY))
    assert connected(model, masks, batch[0])
    assert snip.held_masks(model) == masks


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
    cure = re.search(r"cannot learn\. (\w+)=(\S+) leaves a path: it was tried", said[0])
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
    call = (torch.ones(5, 3),), {}
    same, said = heard(lambda: with_a_path(model, masks, call, None, repair=True))
    assert same is masks
    assert "too little is left of '0.weight', '1.weight'" in said[0]
    assert "no path" in said[0]
    assert has_path(model, masks, call) is False
    second[1, 0] = True
    met = snip.Masks({"0.weight": first, "1.weight": second})
    assert has_path(model, met, call) is True
    assert reached_outputs(model, met, call) == 1


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


class Odd(nn.Sequential):
    """The probe runs in eval mode, in which this model fails or ignores its input."""

    def __init__(self, kind, *layers):
        super().__init__(*layers)
        self.kind = kind

    def forward(self, x):
        if self.kind == "fails" and not self.training:
            raise RuntimeError("only in train mode")
        return super().forward(x if self.training else 0.0 * x)


def layer_by_layer(model, batch):
    """A loss that never calls the whole model."""
    x = batch[0]
    for layer in model:
        x = layer(x)
    return nn.functional.cross_entropy(x, batch[1])


@pytest.mark.parametrize(
    ("kind", "loss"), [("fails", None), ("ignores", None), ("whole", layer_by_layer)]
)
def test_a_model_that_cannot_be_followed_is_pruned_without_a_claim(kind, loss):
    layers, batch = chain()
    model = Odd(kind, *layers).train()
    masks, said = heard(lambda: snip.prune(model, batch, sparsity=SPARSITY, loss_fn=loss))
    assert masks.kept == round(masks.total * (1 - SPARSITY))
    assert "nothing is left of" in said[0]
    assert "no path" not in said[0]


def test_a_model_of_labels_and_its_own_loss_is_followed():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = chain()[0]

        def forward(self, inputs, labels=None):
            logits = self.layers(inputs)
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    model, (inputs, labels) = Own(), chain()[1]
    masks, said = heard(
        lambda: snip.prune(
            model,
            {"inputs": inputs, "labels": labels},
            sparsity=SPARSITY,
            loss_fn=lambda m, b: m(**b)["loss"],
        )
    )
    assert "pruned with" in said[0]
    assert connected(model.layers, {n.removeprefix("layers."): m for n, m in masks.items()}, inputs)
