"""LSTM and GRU of several layers, both directions and packed sequences against torch in float64."""

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import snip
from snip.common.errors import InputError
from snip.engine import kernels
from snip.engine.kernels.library import available
from snip.engine.layers.recurrent import SparseRecurrent
from snip.engine.layers.table import sparse_layer
from snip.masks import Masks

pytestmark = pytest.mark.skipif(not available(), reason="no native kernels on this machine")
KINDS = pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])


def layers(kind, inputs=5, hidden=7, density=0.4, **settings):
    """A recurrent layer in float64 with zeros in its weights, and its sparse counterpart."""
    exact = kind(inputs, hidden, **settings).double()
    masks = {}
    with torch.no_grad():
        for name, weight in exact.named_parameters():
            masks[name] = torch.rand(weight.shape) < density
            weight.mul_(2 * masks[name])
    return exact, SparseRecurrent(copy.deepcopy(exact).float(), masks)


def numbers(*shape):
    return torch.randn(shape).double().requires_grad_()


def flat(result):
    """All tensors of (outputs, state), with the padded form of a packed output."""
    outputs, state = result
    outputs = pad_packed_sequence(outputs)[0] if isinstance(outputs, PackedSequence) else outputs
    return [outputs, *(state if isinstance(state, tuple) else (state,))]


def assert_same(exact, sparse, call, tensors):
    """The same results and gradients, of a call that is given the layer and its tensors."""
    tensors = [t.detach().requires_grad_() for t in tensors]
    single = [t.detach().float().requires_grad_() for t in tensors]
    exact.zero_grad(), sparse.zero_grad()
    want, got = flat(call(exact, *tensors)), flat(call(sparse, *single))
    seeds = [torch.randn_like(part) for part in want]
    for one, two in zip(want, got, strict=True):
        assert two.shape == one.shape
        torch.testing.assert_close(two.double(), one, atol=1e-5, rtol=1e-4)
    torch.autograd.backward(want, seeds)
    torch.autograd.backward(got, [seed.float() for seed in seeds])
    for one, two in zip(tensors, single, strict=True):
        torch.testing.assert_close(two.grad.double(), one.grad, atol=1e-4, rtol=1e-3)
    for name, parameter in exact.named_parameters():
        packed, values = sparse.packed[name], sparse._parameters[name]
        if values is not None:
            want = packed.pack(parameter.grad)
            torch.testing.assert_close(values.grad.double(), want, atol=1e-4, rtol=1e-3)


def start(exact, batch):
    """An initial h (and c), as tensors."""
    shape = (exact.num_layers * (1 + exact.bidirectional), *batch, exact.hidden_size)
    return [numbers(*shape) for _ in range(1 + isinstance(exact, nn.LSTM))]


def called(layer, x, *state):
    return layer(x, tuple(state) if len(state) > 1 else state[0] if state else None)


@KINDS
@pytest.mark.parametrize("batch", [1, 3, 21])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_several_layers_equal_torch(kind, batch, batch_first, bidirectional):
    torch.manual_seed(batch)
    settings = {"num_layers": 3, "batch_first": batch_first, "bidirectional": bidirectional}
    exact, sparse = layers(kind, **settings)
    x = numbers(batch, 4, 5) if batch_first else numbers(4, batch, 5)
    assert_same(exact, sparse, called, [x])
    exact, sparse = layers(kind, **settings, bias=False)
    assert_same(exact, sparse, called, [x, *start(exact, (batch,))])


@KINDS
@pytest.mark.parametrize("batch_first", [False, True])
def test_one_sequence_without_a_batch_equals_torch(kind, batch_first):
    torch.manual_seed(0)
    exact, sparse = layers(kind, num_layers=2, bidirectional=True, batch_first=batch_first)
    assert_same(exact, sparse, called, [numbers(6, 5)])
    assert_same(exact, sparse, called, [numbers(6, 5), *start(exact, ())])


@KINDS
@pytest.mark.parametrize("lengths", [[4, 1, 6, 6, 2], [5, 5, 3], [1], [7, *range(20, 0, -1)]])
@pytest.mark.parametrize("is_sorted", [False, True])
def test_packed_sequences_equal_torch(kind, lengths, is_sorted):
    torch.manual_seed(0)
    lengths = sorted(lengths, reverse=True) if is_sorted else lengths
    exact, sparse = layers(kind, num_layers=2, bidirectional=True)

    def call(layer, x, *state):
        return called(layer, pack_padded_sequence(x, lengths, enforce_sorted=is_sorted), *state)

    x = numbers(max(lengths), len(lengths), 5)
    assert_same(exact, sparse, call, [x])
    assert_same(exact, sparse, call, [x, *start(exact, (len(lengths),))])


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_setting_equals_torch(data):
    """Odd sizes, empty rows, any lengths."""
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    draw = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    exact, sparse = layers(
        data.draw(st.sampled_from([nn.LSTM, nn.GRU])),
        *(draw(1, 9), draw(1, 18), data.draw(st.sampled_from([0.0, 0.1, 0.6, 1.0]))),
        num_layers=draw(1, 3),
        bidirectional=data.draw(st.booleans()),
        bias=data.draw(st.booleans()),
    )
    lengths = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=20))

    def call(layer, x, *state):
        return called(layer, pack_padded_sequence(x, lengths, enforce_sorted=False), *state)

    tensors = [numbers(max(lengths), len(lengths), exact.input_size)]
    tensors += start(exact, (len(lengths),)) if data.draw(st.booleans()) else []
    assert_same(exact, sparse, call, tensors)


@KINDS
def test_more_threads_compute_the_same(kind):
    torch.manual_seed(0)
    _, sparse = layers(kind, 20, 40, num_layers=2, bidirectional=True)
    lengths = torch.arange(60, 10, -1)
    x = pack_padded_sequence(torch.randn(60, 50, 20), lengths)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = flat(sparse(x))
        torch.set_num_threads(2)
        assert all(map(torch.equal, flat(sparse(x)), alone))
    finally:
        torch.set_num_threads(before)


def test_dropout_is_between_layers_and_only_in_training():
    torch.manual_seed(0)
    exact, sparse = layers(nn.LSTM, num_layers=2, dropout=1.0)
    x = numbers(4, 3, 5)
    assert_same(exact, sparse, called, [x])  # the second layer reads nothing but zeros
    assert_same(exact.eval(), sparse.eval(), called, [x])
    _, sparse = layers(nn.LSTM, 5, 50, num_layers=2, dropout=0.5)
    x = torch.randn(10, 20, 5)
    assert not torch.equal(sparse(x)[0], sparse(x)[0])
    assert torch.equal(sparse.eval()(x)[0], sparse(x)[0])


@KINDS
def test_dense_way_and_other_dtypes_are_the_same(kind):
    torch.manual_seed(0)
    exact, sparse = layers(kind, num_layers=2, bidirectional=True, dropout=0.5)
    exact.eval(), sparse.eval()
    x = numbers(6, 3, 5)
    packed = pack_padded_sequence(x, [6, 4, 1])
    sparse.way = "dense"
    assert_same(exact, sparse, called, [x])
    for inputs in (x, packed):
        for one, two in zip(flat(exact(inputs)), flat(sparse.double()(inputs)), strict=True):
            torch.testing.assert_close(one, two)


def test_a_wrong_state_is_refused_as_torch_refuses_it():
    exact, sparse = layers(nn.GRU, num_layers=2)
    x = torch.randn(4, 3, 5)
    for state in (torch.zeros(1, 3, 7), torch.zeros(2, 2, 7)):
        with pytest.raises(RuntimeError, match="hidden"):
            exact.float()(x, state)
        with pytest.raises(RuntimeError, match="hidden"):
            sparse(x, state)
    with pytest.raises(RuntimeError, match="size"):
        sparse(torch.randn(4, 3, 6))


def test_outputs_lie_in_memory_as_torch_has_them():
    """Forwards call `view` on them."""
    _, sparse = layers(nn.LSTM, bidirectional=True)
    x = torch.randn(4, 3, 5)
    assert sparse(x)[0].is_contiguous()
    assert sparse(pack_padded_sequence(x, [4, 4, 2]))[0].data.is_contiguous()
    assert sparse(x)[0].view(12, 14).shape == (12, 14)


def test_projections_and_plain_rnn_stay_dense():
    assert sparse_layer(nn.LSTM(4, 5, proj_size=2)) is None
    assert sparse_layer(nn.RNN(4, 5)) is None
    for layer in (nn.LSTM(4, 5, num_layers=2, bidirectional=True), nn.GRU(4, 5, bias=False)):
        assert sparse_layer(layer) is SparseRecurrent


class Tagger(nn.Module):
    """What people write: packed words in, a padded row of classes out."""

    def __init__(self, kind=nn.LSTM):
        super().__init__()
        self.rnn = kind(6, 8, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x, lengths):
        self.rnn.flatten_parameters()
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, _ = self.rnn(packed)
        return self.head(pad_packed_sequence(out, batch_first=True)[0])


@KINDS
@pytest.mark.filterwarnings("ignore::snip.SnipWarning")
def test_a_network_of_packed_sequences_is_accelerated_copied_saved_and_taken_back(kind):
    torch.manual_seed(0)
    model, x, lengths = Tagger(kind), torch.randn(4, 5, 6), torch.tensor([2, 5, 1, 3])
    masks = {n: torch.rand(p.shape) < 0.5 for n, p in model.named_parameters() if p.ndim > 1}
    Masks(masks).apply(model)
    fast = snip.accelerate(model, (x, lengths), ways={})
    assert isinstance(fast.rnn, SparseRecurrent)
    want = model(x, lengths)
    for network in (fast, copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        torch.testing.assert_close(network(x, lengths), want)
    torch.testing.assert_close(snip.densify(fast)(x, lengths), want)
    fast.load_state_dict(model.state_dict())
    assert fast.state_dict().keys() == model.state_dict().keys()
    torch.testing.assert_close(fast(x, lengths), want)


@pytest.mark.filterwarnings("ignore::snip.SnipWarning")
def test_the_last_output_of_both_directions_is_not_their_last_state():
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(4, 6, num_layers=2, bidirectional=True, batch_first=True)

        def forward(self, x):
            return self.rnn(x)[0][:, -1]

    torch.manual_seed(0)
    model, x = Last(), torch.randn(3, 5, 4)
    Masks({n: torch.rand(p.shape) < 0.5 for n, p in model.named_parameters()}).apply(model)
    fast = snip.accelerate(model, x, ways={})
    assert isinstance(fast.rnn, SparseRecurrent)
    torch.testing.assert_close(fast(x), model(x))


def test_kernels_refuse_steps_that_grow():
    index = kernels.LinearIndex.from_mask(torch.ones(3, 1) > 0)
    for sizes in ([1, 2], [3], [2, 1, 0], [2, 2, -1]):
        with pytest.raises(InputError, match="a step has"):
            kernels.gru_forward(
                *(index, torch.ones(3), None, torch.zeros(3, 3), torch.zeros(1, 5), 2),
                sizes=torch.tensor(sizes),
            )
    with pytest.raises(InputError, match="gates"):
        kernels.gru_forward(
            *(index, torch.ones(3), None, torch.zeros(3, 3), torch.zeros(1, 5), 2),
            sizes=torch.tensor([2, 2]),
        )
