"""Torch's own transformer encoders run sparse, and compute what the dense ones do."""

import copy
import pickle

import pytest
import torch
from attention_parts import CAUSAL, PADDING, WIDTH, assert_same, pair_of, sequences, total
from expected_warnings import expects
from torch import nn

import snip
from snip.engine.kernels.library import available
from snip.engine.layers.attention import SparseAttention
from snip.engine.layers.linear import SparseLinear

pytestmark = [
    pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set"),
    pytest.mark.usefixtures("empty_cache"),
]

ENCODER_MASKS = {
    "no mask": {},
    "padding": {"src_key_padding_mask": PADDING},
    "padding on the left": {"src_key_padding_mask": PADDING.flip(1)},
    "causal": {"mask": CAUSAL, "is_causal": True},
    "both": {"mask": CAUSAL.isinf(), "src_key_padding_mask": PADDING},
}


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("wrapped", [True, False])
def test_an_encoder(batch_first, norm_first, wrapped):
    x = sequences(batch_first)
    layer = nn.TransformerEncoderLayer(
        WIDTH, 2, 16, dropout=0.0, batch_first=batch_first, norm_first=norm_first
    )
    encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(WIDTH))
    model, fast = pair_of(encoder, x, wrapped=wrapped)
    sparse = [m for m in fast.modules() if isinstance(m, (SparseAttention, SparseLinear))]
    assert len(sparse) == 8
    for masks in ENCODER_MASKS.values():
        assert_same(model, fast, x, **masks)
    for again in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        assert_same(model, again, x, **ENCODER_MASKS["padding"])
    plain = snip.densify(fast)
    assert [type(m) for m in plain.modules()] == [type(m) for m in model.modules()]
    assert all(torch.equal(v, plain.state_dict()[k]) for k, v in model.state_dict().items())
    assert_same(plain, fast, x, **ENCODER_MASKS["padding"])


def test_padded_sequences_stay_zero_where_torch_makes_them_so():
    x = sequences(True)
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True)
    model, fast = pair_of(nn.TransformerEncoder(layer, 2), x)
    model.eval(), fast.eval()
    with torch.no_grad():
        expected, found = (m(x, src_key_padding_mask=PADDING) for m in (model, fast))
    assert (expected[PADDING] == 0).all()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_frozen_encoder_of_which_a_bias_is_gone():
    x = sequences(True)
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2)
    model, fast = pair_of(encoder, x, drawn="norm1.bias")
    assert fast.inner.layers[0].linear1.bias is None
    model.eval().requires_grad_(False), fast.eval().requires_grad_(False)
    expected, found = (m(x, src_key_padding_mask=PADDING) for m in (model, fast))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_a_mask_that_is_learned_while_the_encoder_is_frozen(training):
    x, learned = sequences(True), (CAUSAL.isinf() * 0.5).requires_grad_()
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0, batch_first=True)
    model, fast = pair_of(nn.TransformerEncoder(layer, 2), x, drawn="norm1.bias")
    gradients = []
    for network in (model, fast):
        network.train(training).requires_grad_(False)
        if network is model:  # torch's short cut has no gradient of the mask
            network.train()
        total(network(x, mask=learned)).backward()
        gradients.append(learned.grad)
        learned.grad = None
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-3, atol=1e-4)
    # Beside padding, too, where torch asks biases that are gone whether they require one.
    assert fast(x, mask=learned, src_key_padding_mask=PADDING).requires_grad


def test_one_layer_alone_and_a_whole_transformer():
    x = sequences(True)
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0, batch_first=True)
    model, fast = pair_of(layer, x, wrapped=False)
    assert_same(model, fast, x, src_key_padding_mask=PADDING)
    assert type(snip.densify(fast)) is nn.TransformerEncoderLayer
    whole = nn.Transformer(WIDTH, 2, 1, 1, 16, dropout=0.0, batch_first=True)
    model, fast = pair_of(whole, x, x)
    assert sum(isinstance(m, SparseAttention) for m in fast.modules()) == 3
    assert_same(model, fast, x, x, src_key_padding_mask=PADDING)


class Special(nn.TransformerEncoderLayer):
    """A class of the user's, whose short cut cannot be taken away."""


@expects("losses", "optimiser", "untraced")
def test_a_subclass_of_the_users_keeps_the_weights_that_torch_reads():
    x = sequences(True)
    layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), Special(WIDTH, 2, 16, 0.0, batch_first=True))
    model, fast = pair_of(layers, x)
    assert isinstance(fast.inner[0], SparseLinear)
    assert type(fast.inner[1].linear1) is nn.Linear
    assert_same(model, fast, x)


def test_layers_inside_an_encoder_are_timed_too(monkeypatch):
    asked = []

    def losing(_dense, _sparse, names, _inputs):
        asked.extend(names)
        return [name for name in names if name.endswith(("self_attn", "linear2"))]

    monkeypatch.setattr("snip.engine.sparse_copy.losing_layers", losing)
    seconds = {"dense": 1.0, "sparse": 0.5}
    monkeypatch.setattr("snip.engine.accelerate.step_seconds", lambda *_: seconds)
    x = sequences(True)
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.TransformerEncoder(layer, 1))
    snip.prune(model, x, sparsity=0.5, loss_fn=lambda m, x: total(m(x)).square())
    fast = snip.accelerate(model, x)
    inside = "1.layers.0."
    assert set(asked) == {
        inside + name for name in ("self_attn", "self_attn.out_proj", "linear1", "linear2")
    }
    ways = {name: fast.get_submodule(name).way for name in asked}
    assert ways == {
        inside + "self_attn": "dense",
        inside + "self_attn.out_proj": "dense",
        inside + "linear1": "sparse",
        inside + "linear2": "dense",
    }
