"""Torch's own attention runs sparse, and computes what the dense one does."""

import pytest
import torch
from attention_parts import BATCH, CAUSAL, PADDING, TOKENS, WIDTH, assert_same, pair_of, sequences
from expected_warnings import expects
from torch import nn

from snip.engine import pace
from snip.engine.kernels.library import available
from snip.engine.layers.attention import SparseAttention
from snip.engine.layers.linear import SparseLinear

pytestmark = [
    pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set"),
    pytest.mark.usefixtures("empty_cache"),
]

MASKS = {
    "no mask": {},
    "padding": {"key_padding_mask": PADDING},
    "padding as numbers": {"key_padding_mask": torch.zeros(PADDING.shape).masked_fill(PADDING, -9)},
    "causal": {"attn_mask": CAUSAL, "is_causal": True},
    "causal, as booleans": {"attn_mask": CAUSAL.isinf()},
    "both": {"attn_mask": CAUSAL.isinf(), "key_padding_mask": PADDING, "is_causal": True},
    "for each head": {
        "attn_mask": torch.linspace(-1, 1, 150).sin().view(2 * BATCH, TOKENS, TOKENS)
    },
}


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_attention_to_itself(batch_first, bias):
    x = sequences(batch_first)
    attention = nn.MultiheadAttention(WIDTH, 2, bias=bias, batch_first=batch_first)
    model, fast = pair_of(attention, x, x, x)
    assert isinstance(fast.inner, SparseAttention)
    assert isinstance(fast.inner.out_proj, SparseLinear)
    for masks in MASKS.values():
        for options in ({}, {"need_weights": False}, {"average_attn_weights": False}):
            assert_same(model, fast, x, x, x, **masks, **options)


@pytest.mark.parametrize("batch_first", [True, False])
def test_attention_to_another_sequence(batch_first):
    x, other, values = (sequences(batch_first, n) for n in (TOKENS, 7, 7))
    attention = nn.MultiheadAttention(WIDTH, 2, batch_first=batch_first)
    model, fast = pair_of(attention, x, other, values)
    padding = torch.arange(7) >= torch.tensor([[7], [3], [2]])
    assert_same(model, fast, x, other, values)
    assert_same(model, fast, x, other, other, key_padding_mask=padding)
    assert_same(model, fast, x, other, values, need_weights=False)
    assert_same(model, fast, other, x, x, need_weights=False)


def test_what_the_kernels_do_not_know_is_torchs_business():
    x = sequences(True)
    model, fast = pair_of(nn.MultiheadAttention(WIDTH, 2, batch_first=True), x, x, x)
    assert_same(model, fast, x[0], x[0], x[0])  # a sequence without a batch
    for network in (model, fast):
        with pytest.raises(RuntimeError, match="Need attn_mask"):
            network(x, x, x, is_causal=True)
        with pytest.raises((RuntimeError, AssertionError)):
            network(x, x, x, key_padding_mask=PADDING[:, :2])
    model, fast = model.double(), fast.double()
    assert_same(model, fast, x.double(), x.double(), x.double())


@pytest.mark.parametrize("way", ["sparse", "dense"])
@expects("losses")
def test_attention_of_which_little_is_left(way):
    x = sequences(True)
    attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
    model, fast = pair_of(attention, x, x, x, sparsity=0.97, ways={"inner": way})
    assert_same(model, fast, x, x, x)


class Between(nn.Module):
    """A linear layer in front of an attention, so that something can run sparse in any case."""

    def __init__(self, **options) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, **options)

    def forward(self, x, key):
        return self.attention(self.first(x), key, key)[0]


@pytest.mark.parametrize(
    "options", [{"add_bias_kv": True}, {"add_zero_attn": True}, {"kdim": 4, "vdim": 4}]
)
def test_attention_with_something_added_stays_dense(options):
    x = sequences(False)
    key = x[..., :4] if "kdim" in options else x
    model, fast = pair_of(Between(**options), x, key)
    assert type(fast.inner.attention) is nn.MultiheadAttention
    assert isinstance(fast.inner.first, SparseLinear)
    assert_same(model, fast, x, key)


def test_an_attention_whose_weights_are_read_elsewhere_stays_dense():
    class Peeks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(WIDTH, WIDTH)
            self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

        def forward(self, x):
            x = self.attention(x, x, x)[0] + self.first(x)
            return x @ self.attention.in_proj_weight[:WIDTH]

    x = sequences(True)
    model, fast = pair_of(Peeks(), x)
    assert type(fast.inner.attention.out_proj) is type(model.inner.attention.out_proj)
    assert_same(model, fast, x)


@pytest.mark.parametrize("batch_first", [True, False])
def test_dropout_behind_attention_draws_what_it_does_in_torch(batch_first):
    x = sequences(batch_first)
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.5, batch_first=batch_first)
    model, fast = pair_of(layer, x)
    made = []
    for network in (model.train(), fast.train()):
        torch.manual_seed(1)
        made.append(network(x))
    torch.testing.assert_close(made[1], made[0], rtol=1e-4, atol=1e-5)


def test_what_is_one_tensor_is_one_where_a_layer_is_timed(monkeypatch):
    x = sequences(True)
    model, fast = pair_of(nn.MultiheadAttention(WIDTH, 2, batch_first=True), x, x, x)
    seen = []

    def once(works, **_settings):
        for work in works.values():
            work()
        return dict.fromkeys(works, 1.0)

    monkeypatch.setattr(pace, "best_times", once)
    fast.inner.register_forward_pre_hook(lambda _layer, args: seen.append(args))
    assert pace.losing_layers(model, fast, ["inner"], (x, x, x)) == []
    query, key, value = seen[0]
    assert query is key
    assert key is value
    assert query is not x
