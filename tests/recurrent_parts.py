"""A recurrent layer in float64, its sparse counterpart, and what both must agree on."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from snip.engine.layers.recurrent import SparseRecurrent

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
