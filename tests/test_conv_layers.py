"""Convolutions over lines and volumes and transposed ones against torch in float64."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from snip.common.errors import InputError
from snip.engine.kernels import ConvIndex
from snip.engine.kernels.library import available
from snip.engine.layers.layouts import from_blocks, from_lines, to_blocks
from snip.engine.layers.table import sparse_layer

pytestmark = pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set")

LAYERS = {
    "1-d": (nn.Conv1d(5, 7, 3), (11,)),
    "1-d strided, padded, dilated": (nn.Conv1d(5, 7, 4, 3, 2, 2), (17,)),
    "1-d same": (nn.Conv1d(5, 7, 5, padding="same", dilation=2, bias=False), (12,)),
    "1-d grouped": (nn.Conv1d(6, 9, 3, groups=3, padding=1), (10,)),
    "1-d depthwise": (nn.Conv1d(6, 6, 31, groups=6, padding=15), (40,)),
    "2-d depthwise": (nn.Conv2d(6, 6, 7, groups=6, padding=3), (9, 8)),
    "2-d depthwise, strided": (nn.Conv2d(6, 12, 3, 2, groups=6, padding=1), (9, 8)),
    "transposed 1-d": (nn.ConvTranspose1d(5, 7, 4, 2, 1), (9,)),
    "transposed 1-d, odd": (nn.ConvTranspose1d(4, 6, 3, 3, 2, 1, 2, False, 2), (7,)),
    "transposed 2x2": (nn.ConvTranspose2d(5, 3, 2, stride=2), (6, 5)),
    "transposed 4x4": (nn.ConvTranspose2d(5, 3, 4, 2, 1), (6, 5)),
    "transposed, odd": (
        nn.ConvTranspose2d(4, 6, (3, 2), (2, 3), (1, 0), (1, 2), 2, False, (2, 1)),
        (5, 6),
    ),
    "transposed, stride 1": (nn.ConvTranspose2d(4, 6, 3, padding=1), (5, 6)),
    "3-d": (nn.Conv3d(3, 4, 3, padding=1), (4, 5, 6)),
    "3-d strided, dilated": (
        nn.Conv3d(3, 4, (3, 2, 1), (2, 1, 2), (2, 1, 0), (2, 1, 1)),
        (6, 5, 4),
    ),
    "3-d grouped, same": (nn.Conv3d(4, 6, 3, padding="same", groups=2, bias=False), (3, 4, 5)),
    "3-d one image deep": (nn.Conv3d(3, 4, (1, 3, 3)), (5, 6, 4)),
}


def pair_of(layer, density=0.3):
    """A layer in float64 with zeros in its weights, and its sparse counterpart."""
    exact = copy.deepcopy(layer).double()
    mask = torch.rand(exact.weight.shape) < density
    with torch.no_grad():
        exact.weight.mul_(mask)
    return exact, sparse_layer(layer)(copy.deepcopy(exact).float(), {"weight": mask})


def assert_same(exact, sparse, x):
    x = x.double().requires_grad_()
    single = x.detach().float().requires_grad_()
    want, got = exact(x), sparse(single)
    assert got.shape == want.shape
    torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=1e-4)
    seed = torch.randn_like(want)
    want.backward(seed)
    got.backward(seed.float())
    torch.testing.assert_close(single.grad.double(), x.grad, atol=1e-4, rtol=1e-3)
    dw = sparse.packed["weight"].pack(exact.weight.grad)
    torch.testing.assert_close(sparse.weight.grad.double(), dw, atol=1e-4, rtol=1e-3)
    if exact.bias is not None:
        torch.testing.assert_close(sparse.bias.grad.double(), exact.bias.grad, atol=1e-4, rtol=1e-3)
    exact.zero_grad(), sparse.zero_grad()


@pytest.mark.parametrize("name", LAYERS)
def test_layers_equal_torch(name):
    torch.manual_seed(0)
    layer, size = LAYERS[name]
    channels = layer.in_channels
    exact, sparse = pair_of(layer)
    for batch in (1, 3, 18):
        x = torch.randn(batch, channels, *size)
        assert_same(exact, sparse, x)
        with torch.no_grad():
            torch.testing.assert_close(sparse(x).double(), exact(x.double()), atol=1e-5, rtol=1e-4)
    assert_same(exact, sparse, torch.randn(channels, *size))  # one without a batch
    sparse.way = "dense"
    assert_same(exact, sparse, x)
    torch.testing.assert_close(sparse.double()(x.double()), exact(x.double()))  # another dtype


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("density", [0.0, 0.02])
def test_outputs_without_weights_are_their_bias(name, density):
    torch.manual_seed(0)
    layer, size = LAYERS[name]
    exact, sparse = pair_of(layer, density)
    assert_same(exact, sparse, torch.randn(3, layer.in_channels, *size))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_setting_equals_torch(data):
    """Settings that torch accepts, of all kinds of layers."""
    draw = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    torch.manual_seed(draw(0, 1000))
    kind = data.draw(
        st.sampled_from([nn.Conv1d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d])
    )
    positions = int(kind.__name__[-2])
    each = lambda low, high: [draw(low, high) for _ in range(positions)]  # noqa: E731
    groups, transposed = draw(1, 2), "Transpose" in kind.__name__
    stride, dilation, kernel = each(1, 3), each(1, 2), each(1, 4)
    chosen = {
        **{"stride": stride, "padding": each(0, 1), "dilation": dilation, "groups": groups},
        **({"output_padding": [draw(0, s - 1) for s in stride]} if transposed else {}),
    }
    layer = kind(
        *(groups * draw(1, 4), groups * draw(1, 4), kernel), bias=data.draw(st.booleans()), **chosen
    )
    least = [3 if transposed else d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    size = [least_one + draw(0, 4) for least_one in least]
    exact, sparse = pair_of(layer, data.draw(st.sampled_from([0.0, 0.1, 0.5, 1.0])))
    x = torch.randn(draw(1, 18), layer.in_channels, *size)
    assert_same(exact, sparse, x)


def test_a_size_that_is_asked_of_a_transposed_layer_is_made():
    exact, sparse = pair_of(nn.ConvTranspose2d(3, 4, 3, stride=2))
    x = torch.randn(2, 3, 5, 5)
    want = exact(x.double(), output_size=[12, 11])
    torch.testing.assert_close(sparse(x, output_size=[12, 11]).double(), want)


def test_volumes_too_deep_to_be_folded_run_dense(monkeypatch):
    exact, sparse = pair_of(nn.Conv3d(3, 4, 3))
    x = torch.randn(2, 3, 9, 4, 4)
    monkeypatch.setattr("snip.engine.layers.volume.MOST_FOLDED", 1000)
    assert_same(exact, sparse, x)
    assert not sparse.indices  # no index was made


def test_what_pads_otherwise_stays_dense():
    for layer in (
        nn.Conv1d(3, 4, 3, padding=1, padding_mode="circular"),
        nn.Conv1d(3, 4, 4, padding="same"),
        nn.Conv3d(3, 4, 3, padding=1, padding_mode="reflect"),
        nn.ConvTranspose2d(3, 4, 3, stride=1, dilation=3, output_padding=2),
    ):
        assert sparse_layer(layer) is None


def test_lines_are_blocks_of_height_one():
    x = torch.randn(18, 5, 7)
    assert torch.equal(to_blocks(x), to_blocks(x[:, :, None]))
    assert torch.equal(from_lines(to_blocks(x), 18), x)
    assert torch.equal(from_blocks(to_blocks(x), 18), x[:, :, None])


@pytest.mark.parametrize(
    "wrong",
    [{"stride": (0, 1)}, {"padding": (2**31, 0)}, {"dilation": (0, 1)}, {"padding": (-1, 0)}],
)
def test_an_index_refuses_what_is_no_setting(wrong):
    with pytest.raises(InputError, match="stride"):
        ConvIndex(torch.ones(2, 2, 3, 3) > 0, (2, 9, 9), **wrong)
