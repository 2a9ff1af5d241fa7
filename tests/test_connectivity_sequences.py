"""Paths through recurrent layers and attention, against hand-computed masks."""

import pytest
import torch
from connectivity_parts import Last, SelfAttention, all_kept, probe
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from snip.network.network import Network


def test_lstm_by_hand():
    """Units 0 -> 1 through the recurrence; unit 2 has no candidate, so its gates do nothing."""
    model = Last(nn.LSTM(1, 3, batch_first=True, bias=False), 3)
    ih = torch.zeros(4, 3, 1, dtype=torch.bool)  # gates i, f, g, o
    hh = torch.zeros(4, 3, 3, dtype=torch.bool)
    ih[2, 0] = True  # x -> candidate of unit 0
    hh[2, 1, 0] = True  # unit 0 -> candidate of unit 1
    ih[3, 1] = True  # x -> output gate of unit 1
    ih[0, 2] = True  # x -> input gate of unit 2, which has nothing to let in
    hh[1, 0, 2] = True  # unit 2, always zero -> forget gate of unit 0
    masks = {
        "rnn.weight_ih_l0": ih.view(12, 1),
        "rnn.weight_hh_l0": hh.view(12, 3),
        "fc.weight": torch.tensor([[False, True, True]]),
    }
    found = probe(model, masks, torch.zeros(1, 4, 1))
    expected_ih, expected_hh = ih.clone(), hh.clone()
    expected_ih[0, 2] = expected_hh[1, 0, 2] = False
    assert torch.equal(found.effective["rnn.weight_ih_l0"], expected_ih.view(12, 1))
    assert torch.equal(found.effective["rnn.weight_hh_l0"], expected_hh.view(12, 3))
    assert found.effective["fc.weight"].tolist() == [[False, True, False]]
    units = Network.of(model).live_units(found.effective)
    assert units["rnn.weight_ih_l0"].outputs.tolist() == [True, True, False]
    assert units["rnn.weight_hh_l0"].outputs.tolist() == [True, True, False]


def test_gru_by_hand():
    """The reset gate matters only where there is a recurrent candidate to reset."""
    model = Last(nn.GRU(1, 2, batch_first=True, bias=False), 2)
    ih = torch.zeros(3, 2, 1, dtype=torch.bool)  # r, z, n
    hh = torch.zeros(3, 2, 2, dtype=torch.bool)
    ih[2, 0] = ih[0, 0] = ih[0, 1] = True  # candidate of 0; reset gates of both
    hh[2, 1, 0] = True  # unit 0 -> candidate of unit 1
    masks = {
        "rnn.weight_ih_l0": ih.view(6, 1),
        "rnn.weight_hh_l0": hh.view(6, 2),
        "fc.weight": torch.tensor([[False, True]]),
    }
    found = probe(model, masks, torch.zeros(1, 3, 1))
    expected = ih.clone()
    expected[0, 0] = False  # unit 0 has no recurrent candidate
    assert torch.equal(found.effective["rnn.weight_ih_l0"], expected.view(6, 1))
    assert torch.equal(found.effective["rnn.weight_hh_l0"], hh.view(6, 2))


def test_a_reset_gate_without_weights_is_half_open():
    model = Last(nn.GRU(1, 2, batch_first=True, bias=False), 2)
    masks = {
        "rnn.weight_ih_l0": torch.tensor([0, 0, 0, 0, 1, 0]).bool()[:, None],  # r, z, n
        "rnn.weight_hh_l0": torch.zeros(6, 2, dtype=torch.bool),
        "fc.weight": torch.tensor([[False, True]]),
    }
    masks["rnn.weight_hh_l0"][5, 0] = True  # unit 0 -> candidate of unit 1
    found = probe(model, masks, torch.zeros(1, 3, 1))
    assert found.connected
    assert all(torch.equal(found.effective[name], mask) for name, mask in masks.items())


def test_sequence_length_bounds_the_recurrent_hops():
    model = Last(nn.RNN(1, 3, batch_first=True, bias=False), 3)
    hh = torch.zeros(3, 3, dtype=torch.bool)
    hh[1, 0] = hh[2, 1] = True
    masks = {
        "rnn.weight_ih_l0": torch.tensor([[True], [False], [False]]),
        "rnn.weight_hh_l0": hh,
        "fc.weight": torch.tensor([[False, False, True]]),
    }
    assert probe(model, masks, torch.zeros(1, 3, 1)).connected
    assert not probe(model, masks, torch.zeros(1, 2, 1)).connected


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("packed", [False, True])
def test_recurrent_layers_in_every_form_are_followed(kind, packed):
    rnn = kind(3, 4, num_layers=2, bidirectional=True, batch_first=True)
    x = torch.zeros(2, 5, 3)
    if packed:
        x = pack_padded_sequence(x, torch.tensor([2, 5]), batch_first=True, enforce_sorted=False)
    found = probe(rnn, all_kept(rnn), x)
    assert all(mask.all() for mask in found.effective.values())


def test_projected_lstm_and_one_step_and_flat_weights():
    rnn = nn.LSTM(3, 4, proj_size=2)
    flat = rnn._flat_weights
    found = probe(rnn, all_kept(rnn), torch.zeros(1, 1, 3))
    assert all(mask.all() for mask in found.effective.values())
    assert rnn._flat_weights is flat
    assert all(a is b for a, b in zip(flat, rnn.parameters(), strict=True))


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_cells(kind):
    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = kind(2, 3)

        def forward(self, x):
            state = None
            for step in x.unbind(1):
                state = self.cell(step, state)
            return state[0] if isinstance(state, tuple) else state

    model = Loop()
    found = probe(model, all_kept(model), torch.zeros(2, 3, 2))
    assert all(mask.all() for mask in found.effective.values())


def test_attention_by_hand():
    """A query feature counts only with its key feature; values pass without either."""
    model = SelfAttention()
    part = torch.ones(3, 2, 2, dtype=torch.bool)  # q, k, v
    part[0, 0] = False  # head 0: no query
    part[2, 1] = False  # head 1: no value
    masks = {
        "attention.in_proj_weight": part.view(6, 2),
        "attention.out_proj.weight": torch.ones(2, 2).bool(),
    }
    found = probe(model, masks, torch.zeros(1, 3, 2))
    live = found.effective["attention.in_proj_weight"].view(3, 2, 2).any(2)
    assert live.tolist() == [[False, False], [False, False], [True, False]]
    assert found.effective["attention.out_proj.weight"].tolist() == [[True, False], [True, False]]


@pytest.mark.parametrize("layer", ["encoder", "decoder", "stack"])
def test_transformers_are_followed(layer):
    x = torch.zeros(2, 3, 4)
    if layer == "decoder":
        model, inputs = nn.TransformerDecoderLayer(4, 2, 8, batch_first=True), (x, x)
    elif layer == "encoder":
        model, inputs = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), x
    else:
        one = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        model, inputs = nn.TransformerEncoder(one, 2, enable_nested_tensor=False), x
    masks = all_kept(model)
    found = probe(model, masks, inputs)
    assert all(mask.all() for name, mask in found.effective.items() if "norm" not in name)
    first = next(name for name in masks if name.endswith("linear1.weight"))
    masks[first][5] = False
    second = first.replace("linear1", "linear2")
    effective = probe(model, masks, inputs).effective[second]
    assert effective.any(0).tolist() == [i != 5 for i in range(8)]


class OwnAttention(nn.Module):
    """Attention, gating and norms as people write them by hand."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.qkv, self.gate, self.out = nn.Linear(4, 12), nn.Linear(4, 4), nn.Linear(4, 2)
        self.register_buffer("causal", torch.full((5, 5), -torch.inf).triu(1))

    def forward(self, tokens):
        x = self.embed(tokens).to(torch.bfloat16)
        q, k, v = self.qkv((x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-5)).chunk(
            3, -1
        )
        scores = q @ k.transpose(-2, -1) / 4**0.5 + self.causal
        scores = scores.masked_fill(tokens[:, None] < 0, float("-inf"))
        x = x + torch.softmax(scores, -1) @ v
        x = x * torch.sigmoid(self.gate(x))
        x -= x.amax(-1, keepdim=True)
        return torch.where(x > 0, x, 0.1 * x).max(1).values @ self.out.weight.T


def test_hand_written_attention_on_tokens():
    model = OwnAttention()
    tokens = torch.zeros(2, 5, dtype=torch.int64)
    masks = all_kept(model)
    found = probe(model, masks, tokens)
    assert all(mask.all() for name, mask in found.effective.items() if name != "out.bias")
    masks["gate.weight"][:] = masks["gate.bias"][:] = False
    found = probe(model, masks, tokens)
    assert found.connected  # sigmoid(0) lets everything pass
    assert found.effective["qkv.weight"].all()
