"""Linear layers on [batch, tokens, features], traced or not, sparse or dense, Conv1D among them."""

import copy
import pickle
import sys
import types
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import snip
from snip.engine.convert import trials
from snip.engine.convert.linear_ways import dense_linear_wins
from snip.engine.convert.timings import Timings
from snip.engine.kernels.library import available
from snip.engine.layers.linear import PlainLinear, SparseConv1D, SparseLinear
from snip.engine.layers.table import sparse_layer

pytestmark = pytest.mark.skipif(not available(), reason="no native kernels on this machine")


@pytest.fixture(autouse=True)
def _own_memory(tmp_path, monkeypatch):
    monkeypatch.setenv("SNIP_CACHE", str(tmp_path))
    torch.manual_seed(0)


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


def accelerated(model: nn.Module, x: torch.Tensor, **options) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", snip.SnipWarning)
        return snip.accelerate(model, x, **options)


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


def sparse_linear(way: str = "sparse") -> tuple[nn.Linear, SparseLinear]:
    layer = nn.Linear(12, 9)
    mask = torch.rand(9, 12) < 0.4
    with torch.no_grad():
        layer.weight.mul_(mask)
    twin = SparseLinear(layer, {"weight": mask})
    twin.way = way
    return layer, twin


def test_an_output_can_be_overwritten_and_its_input_not():
    _, layer = sparse_linear()
    x = torch.randn(2, 3, 12, requires_grad=True)
    layer(x).relu_().sum().backward()
    assert x.grad.shape == x.shape
    hidden = x * 1
    made = layer(hidden)
    hidden.mul_(2)
    with pytest.raises(RuntimeError, match="inplace"):
        made.sum().backward()


@pytest.mark.parametrize("wanted", [(True, False), (False, True), (False, False)])
def test_only_wanted_gradients_are_made(wanted):
    _, layer = sparse_linear()
    layer.weight.requires_grad_(wanted[0])
    x = torch.randn(2, 3, 12, requires_grad=wanted[1])
    layer(x).sum().backward()  # through the bias in any case
    assert (layer.weight.grad is not None, x.grad is not None) == wanted


@pytest.mark.parametrize("way", ["sparse", "dense"])
def test_wrong_and_empty_inputs_are_torchs_business(way):
    dense, layer = sparse_linear(way)
    assert layer(torch.randn(2, 0, 12)).shape == (2, 0, 9)
    assert torch.equal(layer(torch.ones(12)), layer(torch.ones(1, 12))[0])
    for bad in (torch.randn(2, 13), torch.randn(3, 4, 9)):
        with pytest.raises(RuntimeError) as ours:
            layer(bad)
        with pytest.raises(RuntimeError) as theirs:
            dense(bad)
        assert str(ours.value) == str(theirs.value)


def test_a_dense_layer_sees_new_weights_at_once():
    dense, layer = sparse_linear("dense")
    x, mask = torch.randn(4, 3, 12), layer.packed["weight"]
    for mode in (torch.inference_mode, torch.no_grad, torch.enable_grad):
        for change in (lambda p: p.data.mul_(1.5), lambda p: p.detach().add_(0.3)):
            with mode():
                torch.testing.assert_close(layer(x), F.linear(x, layer.whole("weight"), dense.bias))
            with torch.no_grad():
                change(layer.weight)
    layer(x).square().sum().backward()  # after inference mode
    assert layer.weight.grad.shape == (mask.kept,)
    again = pickle.loads(pickle.dumps(layer))
    assert torch.equal(again(x), layer(x))
    assert not again.__getstate__()["indices"]  # the whole weight is not part of a copy


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


class Known(Timings):
    """Timings that say what the test wants, and write down what they were asked."""

    def __init__(self, path, fast: str) -> None:
        super().__init__(path)
        self.fast, self.asked = fast, []

    def get(self, key, make, measure):
        make()()  # the work itself must run
        self.asked.append(key)
        return 1.0 if key.startswith(self.fast) else 2.0


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("fast", ["dense", "sparse"])
def test_a_layer_on_tokens_runs_as_it_is_timed(tmp_path, training, fast, first):
    mode = {"first": first, "training": training}
    layer = SparseLinear(nn.Linear(24, 48), {"weight": torch.rand(48, 24) < 0.5})
    timings = Known(tmp_path / "timings.json", fast)
    assert dense_linear_wins(layer, (3, 7, 24), timings, **mode) == (fast == "dense")
    assert layer.way == "sparse"
    assert "dense" not in layer.indices
    assert all(p.grad is None for p in layer.parameters())


def test_a_very_sparse_layer_with_much_to_do_is_not_timed(tmp_path):
    mode = {"first": False, "training": True}
    layer = SparseLinear(nn.Linear(512, 512), {"weight": torch.rand(512, 512) < 0.1})
    timings = Known(tmp_path / "timings.json", "dense")
    assert not dense_linear_wins(layer, (8, 64, 512), timings, **mode)
    assert not timings.asked
    assert dense_linear_wins(layer, (8, 1, 512), timings, **mode)


class Normed(nn.Module):
    """Layers behind an input that is only scaled, behind one another and, once more, behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.beside = nn.Linear(6, 7), nn.Linear(7, 8), nn.Linear(6, 8)

    def forward(self, x):
        x = x / 2
        return self.second(self.first(x).relu()) + self.beside(x)


def test_layers_are_timed_with_the_gradients_that_training_needs(tmp_path, monkeypatch):
    needed, round_of = {}, trials.round_of

    def noted(forward, layer, x, training):
        needed[layer.sizes] = x.requires_grad
        return round_of(forward, layer, x, training)

    monkeypatch.setattr(trials, "round_of", noted)
    timings = Known(tmp_path / "timings.json", "sparse")
    monkeypatch.setattr("snip.engine.sparse_copy.Timings", lambda: timings)
    x = torch.randn(3, 4, 6)
    model = Normed()
    masks = {f"{name}.weight": layer.weight > 0 for name, layer in model.named_children()}
    snip.Masks(masks).apply(model)
    accelerated(model, x)
    assert needed == {(6, 7): False, (7, 8): True, (6, 8): False}
    assert ["first=True" in key for key in timings.asked] == [True, True, False, False, True, True]


def test_a_frozen_first_layer_is_timed_forward(tmp_path):
    layer = SparseLinear(nn.Linear(24, 48), {"weight": torch.rand(48, 24) < 0.5})
    layer.requires_grad_(False)
    timings = Known(tmp_path / "timings.json", "dense")
    assert dense_linear_wins(layer, (3, 7, 24), timings, first=True, training=True)


def test_a_half_loaded_transformers_is_no_obstacle(monkeypatch):
    name = "transformers.pytorch_utils"  # which lacks its Conv1D while it is being imported
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    assert sparse_layer(nn.Linear(2, 3)) is SparseLinear


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


def test_the_default_dtype_is_not_that_of_dense_weights():
    layer = SparseLinear(nn.Linear(6, 5), {"weight": torch.rand(5, 6) < 0.5})
    layer.way, x = "dense", torch.randn(3, 6)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert layer(x).dtype == torch.float32
    finally:
        torch.set_default_dtype(before)
