"""Torch's own attention and transformer layers run sparse, and compute what the dense ones do."""

import copy
import itertools
import pickle
import warnings

import pytest
import torch
from networks import packed_gradient
from torch import nn

import snip
from snip.engine import pace
from snip.engine.kernels.library import available
from snip.engine.layers.attention import SparseAttention
from snip.engine.layers.linear import SparseLinear

pytestmark = pytest.mark.skipif(not available(), reason="no native kernels on this machine")

BATCH, TOKENS, WIDTH = 3, 5, 8
PADDING = torch.arange(TOKENS) >= torch.tensor([[5], [3], [2]])
CAUSAL = nn.Transformer.generate_square_subsequent_mask(TOKENS)


@pytest.fixture(autouse=True)
def _own_memory(tmp_path, monkeypatch):
    monkeypatch.setenv("SNIP_CACHE", str(tmp_path))


class Caller(nn.Module):
    """Passes everything on: the attention itself is below the root, as it is in a network."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args, **kwargs):
        return self.inner(*args, **kwargs)


def total(outputs):
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    parts = (y for y in outputs if y is not None)
    return sum((y * torch.linspace(-1, 2, y.numel()).view(y.shape)).sum() for y in parts)


def pair_of(inner, *args, sparsity=0.5, ways=None, wrapped=True, drawn="bias"):
    """A pruned model and its accelerated twin, in which every layer that can run sparse does."""
    model = Caller(inner) if wrapped else inner
    with torch.no_grad():
        for name, parameter in inner.named_parameters():
            if name.endswith("bias"):  # torch begins with zeros, which would be pruned
                parameter.normal_(std=0.3 if name.endswith(drawn) else 0.0)
    loss_fn = lambda model, args: total(model(*args)).square()  # noqa: E731
    snip.prune(model, args, sparsity=sparsity, loss_fn=loss_fn)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", snip.SnipWarning)
        fast = snip.accelerate(model, args, ways=ways or {})
    assert fast is not model
    return model, fast


def assert_same(model, fast, *args, **kwargs):
    """Outputs in both modes, with and without gradients, and all gradients."""
    for training, grads in itertools.product((True, False), (True, False)):
        model.train(training), fast.train(training)
        with torch.set_grad_enabled(grads):
            expected, found = model(*args, **kwargs), fast(*args, **kwargs)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
            if not grads:
                continue
            weights = dict(fast.named_parameters())
            gradients = torch.autograd.grad(total(found), list(weights.values()))
            wanted = torch.autograd.grad(
                total(expected), [model.get_parameter(name) for name in weights]
            )
            for name, mine, theirs in zip(weights, gradients, wanted, strict=True):
                theirs = packed_gradient(fast, name, theirs)
                torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)


def sequences(batch_first, tokens=TOKENS):
    x = torch.randn(BATCH, tokens, WIDTH)
    return x if batch_first else x.transpose(0, 1).contiguous()


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


def test_a_subclass_of_the_users_keeps_the_weights_that_torch_reads():
    x = sequences(True)
    layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), Special(WIDTH, 2, 16, 0.0, batch_first=True))
    model, fast = pair_of(layers, x)
    assert isinstance(fast.inner[0], SparseLinear)
    assert type(fast.inner[1].linear1) is nn.Linear
    assert_same(model, fast, x)


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
