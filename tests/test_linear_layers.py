"""A sparse linear layer on tokens: its gradients, its inputs, new weights, and its timing."""

import pickle
import sys
import types

import pytest
import torch
import torch.nn.functional as F
from accelerate_parts import quietly_accelerated as accelerated
from torch import nn

import snip
from snip.engine.convert import trials
from snip.engine.convert.linear_ways import dense_linear_wins
from snip.engine.convert.timings import Timings
from snip.engine.kernels.library import available
from snip.engine.layers.linear import SparseLinear
from snip.engine.layers.table import sparse_layer

pytestmark = [
    pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set"),
    pytest.mark.usefixtures("empty_cache"),
]


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


def test_the_default_dtype_is_not_that_of_dense_weights():
    layer = SparseLinear(nn.Linear(6, 5), {"weight": torch.rand(5, 6) < 0.5})
    layer.way, x = "dense", torch.randn(3, 6)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert layer(x).dtype == torch.float32
    finally:
        torch.set_default_dtype(before)
