"""Which networks can be followed and repaired: own losses, dataclasses, attention, gates."""

from dataclasses import dataclass

import pytest
import torch
from connectivity_parts import SPARSITY, connected, heard, reach
from networks import chain
from small_zoo import Attention
from torch import nn

import snip
from snip.masks import empty_layers
from snip.network.calls import Call
from snip.network.network import Network
from snip.network.paths import Reach


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
    call = Call((torch.ones(1, 4),), {})
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
    parts = Network.of(lstm).packed
    assert empty_layers({"weight_ih_l0": forget}, parts) == ["weight_ih_l0 (forget gate)"]
    assert empty_layers({"weight_ih_l0": ~forget & forget}, parts) == ["weight_ih_l0"]
    scores = {n: torch.zeros_like(p) for n, p in lstm.named_parameters()}
    scores["weight_hh_l0"] += 1.0
    masks = snip.select(scores, sparsity=0.5, floor=2, packed=parts)
    assert masks.kept == round(masks.total * 0.5)
    assert empty_layers(masks, parts) == []
