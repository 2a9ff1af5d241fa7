"""Networks of convolutions over lines, images and volumes stay in blocks and equal dense ones."""

import copy
import pickle

import pytest
import torch
from torch import nn

import snip
from snip.engine.kernels.library import available
from snip.engine.layers.conv import SparseConv1d
from snip.engine.layers.norm import BlockNorm1d
from snip.engine.layers.transposed import SparseConvTranspose1d, SparseConvTranspose2d
from snip.engine.layers.volume import SparseConv3d
from snip.masks import Masks

pytestmark = pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set")


def pruned(model, density=0.5):
    torch.manual_seed(0)
    masks = {n: torch.rand(p.shape) < density for n, p in model.named_parameters() if p.ndim > 1}
    Masks(masks).apply(model)
    return model


def assert_network(model, x, expected):
    """Accelerated, the network has these calls and the same numbers, gradients and statistics."""
    fast = snip.accelerate(model, x, ways={})
    for word in expected:
        assert word in fast.snip_conversion.source
    want, got = model(x), fast(x)
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-3)
    seed = torch.randn_like(want)
    want.backward(seed)
    got.backward(seed)
    for (name, one), two in zip(model.named_parameters(), fast.parameters(), strict=True):
        owner = fast.get_submodule(name.rpartition(".")[0])
        packed = getattr(owner, "packed", {}).get(name.rpartition(".")[2])
        gradient = one.grad if packed is None else packed.pack(one.grad)
        torch.testing.assert_close(two.grad, gradient, atol=2e-3, rtol=1e-2)
    state = fast.state_dict()
    for name, buffer in model.named_buffers():
        torch.testing.assert_close(state[name], buffer)
    model.eval(), fast.eval()
    for network in (fast, copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        torch.testing.assert_close(network(x), model(x), atol=1e-4, rtol=1e-3)
        with torch.no_grad():
            torch.testing.assert_close(network(x[:1]), model(x[:1]), atol=1e-4, rtol=1e-3)
    plain = snip.densify(fast)
    assert {type(m) for m in plain.modules()} == {type(m) for m in model.modules()}
    torch.testing.assert_close(plain(x), model(x), atol=1e-4, rtol=1e-3)
    return fast


def test_a_network_over_lines_stays_in_blocks():
    model = nn.Sequential(
        *(nn.Conv1d(1, 6, 9, 2, padding=4), nn.BatchNorm1d(6), nn.ReLU(), nn.MaxPool1d(2, 2, 1)),
        *(nn.Conv1d(6, 8, 3), nn.ReLU(), nn.MaxPool1d(3, 1, 1, 2, ceil_mode=True)),
        *(nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 3), nn.BatchNorm1d(3)),
    )
    fast = assert_network(pruned(model), torch.randn(18, 1, 60), ["conv_norm", "mean_on_blocks"])
    assert fast.snip_conversion.source.count("to_blocks(") == 1
    assert isinstance(fast[0], SparseConv1d)
    assert isinstance(fast[1], BlockNorm1d)


class Mean(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(2, 6, 3)

    def forward(self, x):
        return self.conv(x).mean((-2, -1))


def test_a_mean_over_the_channels_of_lines_is_no_mean_over_planes():
    assert_network(pruned(Mean()), torch.randn(5, 2, 9), ["from_lines"])


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv1d(4, 4, 3, padding=1), nn.Conv1d(4, 4, 1)

    def forward(self, x):
        x = self.first(x)
        return (x + self.second(x).relu()).transpose(1, 2)


def test_a_residual_over_lines_leaves_and_enters_blocks():
    assert_network(pruned(Residual()), torch.randn(17, 4, 9), ["from_lines"])


def test_a_network_that_goes_down_and_up_stays_in_blocks():
    model = nn.Sequential(
        *(nn.Conv2d(3, 6, 3, 2, 1), nn.BatchNorm2d(6), nn.ReLU()),
        *(nn.ConvTranspose2d(6, 5, 4, 2, 1), nn.BatchNorm2d(5), nn.ReLU(), nn.Conv2d(5, 2, 1)),
    )
    fast = assert_network(pruned(model), torch.randn(18, 3, 8, 8), ["conv_norm"])
    assert fast.snip_conversion.source.count("to_blocks(") == 1
    assert isinstance(fast[3], SparseConvTranspose2d)


class Skip(nn.Module):
    """Down and up again, with the way across beside it: a U-Net."""

    def __init__(self, dim=1):
        super().__init__()
        self.dim = dim
        self.down, self.up = nn.Conv2d(4, 4, 3, 2, 1), nn.ConvTranspose2d(4, 4, 2, 2)
        self.last = nn.Conv2d(4 * (1 + (dim == 1)), 3, 1)

    def forward(self, x):
        return self.last(torch.cat([x, self.up(self.down(x).relu())], dim=self.dim))


@pytest.mark.parametrize("dim", [0, 1])
def test_channels_are_put_side_by_side_in_blocks(dim):
    fast = assert_network(pruned(Skip(dim)), torch.randn(18, 4, 8, 8), ["cat"])
    assert fast.snip_conversion.source.count("from_blocks(") == (1 if dim == 1 else 2)


def test_networks_of_volumes_and_of_transposed_lines():
    volumes = nn.Sequential(
        *(nn.Conv3d(2, 4, 3, padding=1), nn.BatchNorm3d(4), nn.ReLU(), nn.MaxPool3d(2)),
        *(nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(4, 3)),
    )
    fast = assert_network(pruned(volumes), torch.randn(18, 2, 4, 6, 6), [])
    assert isinstance(fast[0], SparseConv3d)
    lines = nn.Sequential(nn.ConvTranspose1d(3, 5, 4, 2), nn.ReLU(), nn.Conv1d(5, 2, 3))
    fast = assert_network(pruned(lines), torch.randn(18, 3, 9), [])
    assert isinstance(fast[0], SparseConvTranspose1d)


def test_a_volume_is_trained_after_inference():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv3d(2, 3, 3), nn.ReLU()), torch.randn(4, 2, 5, 5, 5)
    snip.Masks({"0.weight": torch.rand(3, 2, 3, 3, 3) < 0.3}).apply(model)
    fast = copy.deepcopy(snip.accelerate(model, x, ways={}))
    with torch.inference_mode():
        fast(x)
    fast(x).sum().backward()
    torch.testing.assert_close(fast(x), model(x))
