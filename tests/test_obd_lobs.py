"""OBD and L-OBS against exact Hessians and brute-force least squares, in bounded memory."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import snip
from snip.methods import layer_matrices, obd
from snip.methods.layer_matrices import DAMPING, LayerMatrix, columns, layers_of, rows
from snip.methods.lobs import budgets, compensated, saliency
from snip.methods.obd import hessian_diagonal, saliencies
from snip.network.network import prunable_parameters


def small(kind):
    """A network in float64 in which every logit is piecewise linear in any one weight."""
    torch.manual_seed(3)
    networks = {
        "mlp": (nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)), (6, 4)),
        "conv": (
            nn.Sequential(
                nn.Conv2d(2, 4, 3, padding=1, stride=2), nn.ReLU(inplace=True), nn.MaxPool2d(2),
                nn.Conv2d(4, 2, 1, groups=2), nn.Flatten(), nn.Linear(2, 3),
            ),
            (5, 2, 4, 4),
        ),
        "tokens": (nn.Sequential(nn.Linear(3, 4), nn.ReLU(), Mean(), nn.Linear(4, 3)), (5, 2, 3)),
    }  # fmt: skip
    model, shape = networks[kind]
    return model.double(), torch.randn(shape, dtype=torch.float64)


class Mean(nn.Module):
    """The mean over positions: every weight before it is used at each of them."""

    def forward(self, x):
        return x.mean(1)


@pytest.mark.parametrize("kind", ["mlp", "conv", "tokens"])
def test_obd_has_the_diagonal_of_the_exact_hessian(kind):
    model, inputs = small(kind)
    labels = torch.arange(len(inputs)) % 3
    weights = prunable_parameters(model)
    batches = [(inputs[:2], labels[:2]), (inputs[2:], labels[2:])]
    found = hessian_diagonal(model, batches, weights)
    for name, weight in weights.items():
        exact = second_derivatives(model, name, inputs, labels)
        torch.testing.assert_close(found[name], exact, rtol=1e-6, atol=1e-9)
        assert found[name].shape == weight.shape
        assert exact.any()


def second_derivatives(model, name, inputs, labels):
    """d2L/dw2 of each weight by differentiating twice."""
    own = dict(model.named_parameters())

    def loss(weight):
        logits = torch.func.functional_call(model, own | {name: weight}, (inputs,))
        return F.cross_entropy(logits, labels)

    size = own[name].numel()
    hessian = torch.autograd.functional.hessian(loss, own[name].detach())
    return hessian.reshape(size, size).diagonal().reshape(own[name].shape)


def test_obd_with_many_classes_draws_labels_from_the_answers():
    torch.manual_seed(0)
    model, inputs = nn.Linear(3, 40), torch.randn(4000, 3)
    weights = dict(model.named_parameters())
    batch = [(inputs, torch.zeros(4000, dtype=torch.int64))]
    found = hessian_diagonal(model, batch, weights)["weight"]
    p = model(inputs).softmax(1).double()
    exact = torch.einsum("nc,nk->ck", p * (1 - p), inputs.double().square()) / len(inputs)
    assert ((found - exact).norm() / exact.norm()) < 0.1


def test_obd_finds_the_same_diagonal_of_a_network_every_time():
    """Also with many classes, whose labels it draws: a killed run must find its masks again."""
    model, inputs = nn.Linear(3, 40), torch.randn(30, 3)
    batch, weights = [(inputs, torch.zeros(30).long())], dict(model.named_parameters())
    before = torch.get_rng_state()
    one, two = (hessian_diagonal(model, batch, weights) for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in weights)
    assert torch.equal(torch.get_rng_state(), before)


def test_obd_has_no_use_for_a_layer_that_no_answer_depends_on():
    class Beside(nn.Sequential):
        def forward(self, x):
            self[1](x)  # what comes out is of no use, and the third layer is not even called
            return self[0](x)

    model = Beside(nn.Linear(3, 2), nn.Linear(3, 2), nn.Linear(3, 2))
    weights = dict(model.named_parameters())
    batches = [(torch.randn(4, 3), torch.zeros(4).long())]
    with pytest.raises(snip.InputError, match=r"'2\.weight'.* does not call this layer"):
        hessian_diagonal(model, batches, weights)
    called = {name: weight for name, weight in weights.items() if not name.startswith("2")}
    found = hessian_diagonal(model, batches, called)
    assert [bool(found[f"{k}.weight"].any()) for k in range(2)] == [True, False]


def test_obd_saliency_counts_the_decay():
    weights, diagonal = {"w": torch.tensor([2.0, 1.0])}, {"w": torch.tensor([0.5, 3.0])}
    assert saliencies(weights, diagonal, 0.5)["w"].tolist() == [2.0, 1.75]


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(5, 3), (2, 5)),
        (nn.Linear(5, 3), (2, 4, 5)),
        (nn.Conv1d(4, 6, 3, groups=2, dilation=2), (2, 4, 9)),
        (nn.Conv2d(3, 4, (2, 3), stride=(2, 1), padding="valid"), (2, 3, 7, 6)),
        (nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"), (2, 2, 5, 5)),
        (nn.Conv2d(6, 6, 3, padding="same", groups=6, bias=False), (2, 6, 5, 4)),
        (nn.Conv1d(2, 3, 4, padding="same", padding_mode="reflect"), (2, 2, 6)),
        (nn.Conv2d(2, 4, (3, 2), padding=(2, 1), padding_mode="replicate"), (2, 2, 5, 4)),
    ],
)
def test_a_layer_is_its_matrix_times_its_columns(layer, shape):
    x = torch.randn(shape)
    cut = columns(layer, x)
    matrix = layer.weight.reshape(cut.shape[1], -1, cut.shape[2])
    product = torch.einsum("gok,bgkl->bgol", matrix, cut)
    if layer.bias is not None:
        product = product + layer.bias.view(1, cut.shape[1], -1, 1)
    torch.testing.assert_close(product, rows(layer, layer(x)), rtol=1e-4, atol=1e-5)


def test_lobs_compensation_is_the_least_squares_solution():
    torch.manual_seed(0)
    y = torch.randn(200, 6, dtype=torch.float64) @ torch.randn(6, 6, dtype=torch.float64)
    hessian = (y.T @ y / len(y) + DAMPING * torch.eye(6))[None]
    matrix = torch.randn(1, 4, 6, dtype=torch.float64)
    kept = torch.rand(1, 4, 6) < 0.5
    kept[0, 2] = False  # a unit that loses everything
    found = compensated(matrix, kept, hessian)
    assert not found[~kept].any()
    # The damping is a row per weight that asks for its old value.
    rows = torch.cat([y / len(y) ** 0.5, DAMPING**0.5 * torch.eye(6)]).numpy()
    for unit in (0, 1, 3):
        s = kept[0, unit].numpy()
        best = np.linalg.lstsq(rows[:, s], rows @ matrix[0, unit].numpy(), rcond=None)[0]
        np.testing.assert_allclose(found[0, unit].numpy()[s], best, rtol=1e-6)


def test_lobs_saliency_is_the_least_harm_of_removing_one_weight():
    torch.manual_seed(1)
    y = torch.randn(50, 4, dtype=torch.float64)
    hessian = (y.T @ y / 50)[None]
    matrix = torch.randn(1, 2, 4, dtype=torch.float64)
    scores = saliency(matrix, hessian)
    for unit, q in itertools.product(range(2), range(4)):
        kept = torch.ones(1, 2, 4, dtype=torch.bool)
        kept[0, unit, q] = False
        change = (compensated(matrix, kept, hessian) - matrix)[0, unit]
        harm = change @ hessian[0] @ change / 2
        torch.testing.assert_close(scores[0, unit, q], harm)


def test_lobs_gathers_the_second_moments_of_patches_and_bias():
    layer = nn.Conv2d(2, 4, 2, groups=2)
    weights = dict(layer.named_parameters())
    seen = LayerMatrix("", layer, weights)
    x = torch.randn(3, 2, 4, 4)
    seen.see(x[:1])
    seen.see(x[1:])
    patches = F.unfold(x, 2).double().view(3, 2, 4, -1)
    y = torch.cat([patches, torch.ones_like(patches[:, :, :1])], 2)
    expected = torch.einsum("bgkl,bgml->gkm", y, y) / (3 * 9) + DAMPING * torch.eye(5)
    torch.testing.assert_close(seen.damped_hessian(), expected, rtol=1e-6, atol=1e-9)
    assert torch.equal(seen.split(seen.joined(weights))["weight"], layer.weight)


def test_lobs_budgets_follow_the_pattern_up_to_all_and_add_up():
    sizes = {"a": 1000, "b": 100, "c": 10}
    found = budgets({"a": 0.05, "b": 0.2, "c": 0.7}, sizes, sizes, 150)
    assert sum(found.values()) == 150
    assert found["c"] == 10
    assert abs(found["a"] / 1000 - found["b"] / 100 / 4) < 0.002
    assert budgets({"a": 0.1, "b": 0.1}, {"a": 10, "b": 10}, {"a": 2, "b": 10}, 12) == {
        "a": 2,
        "b": 10,
    }


def test_the_layers_of_some_parameters_are_found_once():
    model, _ = small("conv")
    assert list(layers_of(model, prunable_parameters(model))) == ["0", "3", "5"]


class Sizes(TorchDispatchMode):
    """Notes the bytes of the largest tensor that is computed inside the block."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and not func.is_view:
            self.largest = max(self.largest, out.nbytes)
        return out


def convolutions():
    """A network with activations of 16 x 6 x 64 elements."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 3, groups=2, padding=1),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3),
    )  # fmt: skip
    return model.double(), torch.randn(16, 2, 8, 8, dtype=torch.float64)


def test_obd_takes_as_many_images_at_once_as_fit(monkeypatch):
    model, images = convolutions()
    weights, batch = dict(model.named_parameters()), [(images, torch.zeros(16).long())]
    whole = hessian_diagonal(model, batch, weights)
    # The patches of an image in the two convolutions and the linear layer, and its gradients.
    image = 18 * 64 + 54 * 64 + 6 + 162
    for some in (1, 3):
        monkeypatch.setattr(obd, "MAX_PATCH_ELEMENTS", some * image + 1)
        with Sizes() as sizes:
            found = hessian_diagonal(model, batch, weights)
        torch.testing.assert_close(found, whole)
        # The activations of all images; the patches of all would be nine times as many.
        assert sizes.largest <= 8 * max(16 * 6 * 64, some * image)


@pytest.mark.parametrize("images_at_once", [1, 5])
def test_lobs_takes_as_many_images_at_once_as_fit(images_at_once, monkeypatch):
    model, _ = convolutions()
    layer, images = model[2], torch.randn(16, 6, 8, 8)
    weights = {"weight": layer.weight, "bias": layer.bias}
    whole, split = (LayerMatrix("", layer, weights) for _ in range(2))
    whole.see(images)
    monkeypatch.setattr(layer_matrices, "MAX_ELEMENTS", images_at_once * 2 * 27 * 64)
    with Sizes() as sizes:
        split.see(images)
    torch.testing.assert_close(split.damped_hessian(), whole.damped_hessian())
    assert split.positions == whole.positions == 16 * 64
    # The patches in float64 with a row of ones; or the input of all images with its padding.
    assert sizes.largest <= max(8 * images_at_once * 2 * 28 * 64, 4 * images.numel() * 2)


def test_the_inputs_of_a_layer_may_come_without_a_batch():
    for layer, shape in [(nn.Linear(3, 2), (3,)), (nn.Conv2d(2, 3, 2), (2, 4, 4))]:
        one, other = (LayerMatrix("", layer, dict(layer.named_parameters())) for _ in range(2))
        x = torch.randn(shape)
        one.see(x)
        other.see(x[None])
        assert torch.equal(one.hessian, other.hessian)
