"""A path from input to output: prune looks for one, and repairs a network that would lose it."""

import re
import warnings
from dataclasses import dataclass

import pytest
import torch
from networks import chain
from small_zoo import Attention
from torch import nn

import snip
from snip.anatomy.packed import packed_parts
from snip.masks import empty_layers
from snip.paths.connectivity import connectivity
from snip.paths.reach import Reach, reach
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
    call = (torch.ones(5, 3),), {}
    same, said = heard(lambda: with_a_path(model, masks, call, None, repair=True))
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


def test_outputs_that_no_input_reaches_are_counted():
    model = nn.Sequential(nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 20))
    batch = torch.randn(60, 40), torch.arange(60) % 3
    masks, said = heard(lambda: snip.prune(model, batch, sparsity=0.9))
    dead = len(connectivity(model, masks, batch[0]).dead_outputs)
    assert 0 < dead < 20
    assert f"{dead} of 20 outputs are not reached by any input" in said[0]
    assert "in vain: floor=0.01; floor=0.03; scope='erk'" in said[0]


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
    assert connectivity(model, masks, batch[0]).dead_outputs == ()


def test_outputs_in_a_dataclass_are_followed():
    @dataclass
    class Answer:
        logits: torch.Tensor
        note: str = ""

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = chain()[0]

        def forward(self, x):
            return Answer(self.layers(x))

    def loss(model, batch):
        return nn.functional.cross_entropy(model(batch[0]).logits, batch[1])

    model, batch = Own(), chain()[1]
    masks, said = heard(lambda: snip.prune(model, batch, sparsity=SPARSITY, loss_fn=loss))
    assert "no path leads from" in said[0]
    assert connected(model, masks, batch[0])
    assert snip.report(model).effective_kept


def test_huge_constants_of_a_forward_are_not_taken_for_inputs():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x):
            hidden = torch.full((1, 4), torch.finfo(x.dtype).min)
            return self.last(self.first(x) + hidden + 1e30 * torch.ones(4))

    model = Masked()
    none = {"first.weight": torch.zeros(4, 4).bool(), "last.weight": torch.ones(2, 4).bool()}
    call = (torch.ones(1, 4),), {}
    assert reach(model, none, call) == Reach(0, 2)
    none["first.weight"][0, 0] = True
    assert reach(model, none, call) == Reach(2, 2)


def attention():
    torch.manual_seed(0)
    return Attention(), (torch.randn(6, 7, 6), torch.arange(6) % 3)


def test_queries_and_keys_that_are_emptied_are_named_and_a_floor_keeps_them():
    model, batch = attention()
    masks, said = heard(lambda: snip.prune(model, batch, sparsity=0.9))
    parts = [int(part.sum()) for part in masks["attention.in_proj_weight"].chunk(3)]
    assert parts[:2] == [0, 0]
    assert parts[2] > 0
    named = "nothing is left of 'attention.in_proj_weight (q)', 'attention.in_proj_weight (k)'"
    assert named in said[0]
    assert named in snip.report(model, inputs=batch[0]).warnings[0]
    model, batch = attention()
    masks, said = heard(lambda: snip.prune(model, batch, sparsity=0.9, floor=5))
    q, k, _ = masks["attention.in_proj_weight"].chunk(3)
    bias = masks["attention.in_proj_bias"].chunk(3)
    assert (int(q.sum() + bias[0].sum()), int(k.sum() + bias[1].sum())) == (5, 5)
    assert masks.kept == round(masks.total * 0.1)
    assert said == []


def test_a_gate_of_a_recurrent_layer_is_a_layer_of_its_own():
    lstm = nn.LSTM(3, 4, batch_first=True)
    forget = torch.ones(16, 3).bool()
    forget[4:8] = False
    parts = packed_parts(lstm)
    assert empty_layers({"weight_ih_l0": forget}, parts) == ["weight_ih_l0 (forget gate)"]
    assert empty_layers({"weight_ih_l0": ~forget & forget}, parts) == ["weight_ih_l0"]
    scores = {n: torch.zeros_like(p) for n, p in lstm.named_parameters()}
    scores["weight_hh_l0"] += 1.0
    masks = snip.select(scores, sparsity=0.5, floor=2, packed=parts)
    assert masks.kept == round(masks.total * 0.5)
    assert empty_layers(masks, parts) == []
