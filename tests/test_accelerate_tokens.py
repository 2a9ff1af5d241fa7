"""Networks on [batch, tokens, features], traced or not, sparse or dense, Conv1D among them."""

import copy

import pytest
import torch
import torch.nn.functional as F
from accelerate_parts import quietly_accelerated as accelerated
from torch import nn

import snip
from snip.engine.kernels.library import available
from snip.engine.layers.linear import PlainLinear, SparseConv1D, SparseLinear
from snip.engine.layers.table import sparse_layer

pytestmark = [
    pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set"),
    pytest.mark.usefixtures("empty_cache"),
]


class Block(nn.Module):
    """Half a transformer: what its linear layers see, and attention between them."""

    def __init__(self, width: int = 24, traceable: bool = True) -> None:
        super().__init__()
        self.norm, self.traceable = nn.LayerNorm(width), traceable
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = nn.Linear(width, 5)

    def forward(self, x):
        if not self.traceable and x.sum() > 1e30:  # torch.fx cannot follow this
            return x
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v))
        x = x + self.down(F.gelu(self.up(x)))
        return self.head(x.mean(dim=1))


def pruned(model: nn.Module, x: torch.Tensor, sparsity: float = 0.7) -> nn.Module:
    snip.prune(model, (x, torch.zeros(len(x), dtype=torch.int64)), sparsity=sparsity)
    return model


def assert_equal_networks(model: nn.Module, fast: nn.Module, x: torch.Tensor) -> None:
    """Outputs, gradients of the input and of every surviving weight, against double precision."""
    exact, given = copy.deepcopy(model).double(), x.double().requires_grad_()
    outputs = exact(given)
    outputs.square().sum().backward()
    data = x.clone().requires_grad_()
    found = fast(data)
    fast.zero_grad()
    found.square().sum().backward()
    torch.testing.assert_close(found.double(), outputs, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(data.grad.double(), given.grad, rtol=1e-4, atol=1e-4)
    for name, layer in fast.named_modules():
        for key, packed in layer.packed.items() if isinstance(layer, PlainLinear) else ():
            if layer._parameters[key] is not None:
                gradient = exact.get_submodule(name)._parameters[key].grad
                mine = layer._parameters[key].grad.double()
                torch.testing.assert_close(mine, packed.pack(gradient), rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        torch.testing.assert_close(fast(x).double(), outputs.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("traceable", [True, False])
@pytest.mark.parametrize("way", ["sparse", "dense"])
@pytest.mark.parametrize("shape", [(2, 3), (1, 1), (5, 41)])
def test_tokens_through_a_block(traceable, way, shape):
    x = torch.randn(*shape, 24)
    model = pruned(Block(traceable=traceable), x)
    fast = accelerated(model, x, ways={})
    layers = {name: m for name, m in fast.named_modules() if isinstance(m, SparseLinear)}
    assert len(layers) == 5
    for layer in layers.values():
        layer.way = way
    assert_equal_networks(model, fast, x)


@pytest.mark.parametrize("threads", [1, 2])
def test_tokens_on_threads(threads):
    torch.set_num_threads(threads)
    for shape in ((2, 5), (7, 64)):
        x = torch.randn(*shape, 24)
        model = pruned(Block(traceable=False), x)
        assert_equal_networks(model, accelerated(model, x, ways={}), x)


def dense_mlp() -> tuple[nn.Module, torch.Tensor]:
    """A network whose layers both run dense, with less than all of their weights."""
    x = torch.randn(5, 12)
    model = pruned(nn.Sequential(nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 4)), x, 0.5)
    return accelerated(model, x, ways={"0": "dense", "2": "dense"}), x


def scale(fast: nn.Module, factor: float) -> None:
    with torch.no_grad():
        for parameter in fast.parameters():
            parameter.data.mul_(factor)  # which torch itself does not notice


@pytest.mark.parametrize("layer", [0, 2])
def test_dense_weights_changed_before_the_backward_are_noticed(layer):
    fast, x = dense_mlp()
    loss = fast(x).square().sum()
    with torch.no_grad():
        fast[layer].weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    fast(x).square().sum().backward()


@pytest.mark.parametrize("gradients", [True, False])
def test_a_forward_on_other_weights_makes_no_wrong_gradients_of_the_one_before(gradients):
    fast, x = dense_mlp()
    x.requires_grad_()
    loss = fast(x).square().sum()
    scale(fast, 100)
    with torch.set_grad_enabled(gradients):
        fast(x)  # as a moving average of the weights would be tried
    scale(fast, 0.01)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("weight", [1.0, float("nan")])
def test_forwards_on_the_same_weights_share_a_dense_matrix(weight):
    fast, x = dense_mlp()
    fast[2].weight.data[0] = weight
    losses = [fast(x).square().sum(), fast(-x).square().sum()]
    with torch.no_grad():
        fast(x)
    torch.stack(losses).sum().backward()
    assert fast[0].weight.grad.isnan().any() == (weight != weight)


def test_conv1d_of_transformers_runs_sparse():
    libraries = pytest.importorskip("libraries", reason="transformers is not installed")
    conv1d = libraries.transformers.pytorch_utils.Conv1D

    class Mlp(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = conv1d(40, 10), conv1d(10, 40)

        def forward(self, x):
            return self.down(F.gelu(self.up(x)))

    x = torch.randn(3, 30, 10)
    model = Mlp()
    snip.prune(
        model, x, sparsity=0.7, loss_fn=lambda model, x: model(x).square().mean(),
        params=lambda name, module, parameter: isinstance(module, conv1d) and parameter.ndim == 2,
    )  # fmt: skip
    assert sparse_layer(model.up) is SparseConv1D
    fast = accelerated(model, x, ways={})
    for way in ("sparse", "dense"):
        fast.up.way = fast.down.way = way
        assert_equal_networks(model, fast, x)
    assert fast.state_dict().keys() == model.state_dict().keys()
    back = snip.densify(fast)
    assert type(back.up) is conv1d
    torch.testing.assert_close(back(x), model(x))
