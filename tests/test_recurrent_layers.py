"""LSTM and GRU of several layers, both directions and packed sequences against torch in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recurrent_parts import KINDS, assert_same, called, flat, layers, numbers, start
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from snip.engine.kernels.library import available
from snip.engine.layers.recurrent import SparseRecurrent
from snip.engine.layers.table import sparse_layer

pytestmark = pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set")


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
