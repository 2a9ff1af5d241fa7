"""GraSP against finite differences and against the definition by brute force."""

import copy
from itertools import combinations, pairwise

import pytest
import torch
import torch.nn.functional as F
from expected_warnings import expects
from torch import nn
from torch.autograd.function import once_differentiable

import snip
from snip.methods.grasp import TEMPERATURE, grasp, hessian_product


def small(*widths):
    layers = [nn.Linear(a, b, bias=False) for a, b in pairwise(widths)]
    return nn.Sequential(*[part for layer in layers for part in (layer, nn.Tanh())][:-1]).double()


def data(model, samples=6):
    classes = model[-1].out_features
    inputs = torch.randn(samples, model[0].in_features, dtype=torch.float64)
    return inputs, torch.arange(samples) % classes


def gradient(model, loss):
    return torch.autograd.grad(loss(model), list(model.parameters()))


def moved(model, steps, size):
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter, step in zip(other.parameters(), steps, strict=True):
            parameter.add_(step, alpha=size)
    return other


def test_the_hessian_product_agrees_with_finite_differences():
    model = small(4, 5, 3)
    inputs, targets = data(model)
    weights = list(model.parameters())
    vector = [torch.randn_like(weight) for weight in weights]

    def loss(model):
        return F.cross_entropy(model(inputs), targets)

    found = hessian_product(vector, loss(model), weights)
    ahead, behind = (gradient(moved(model, vector, s), loss) for s in (1e-5, -1e-5))
    for product, one, two in zip(found, ahead, behind, strict=True):
        torch.testing.assert_close(product, (one - two) / 2e-5, rtol=1e-6, atol=1e-9)


def test_scores_are_weight_times_hessian_times_gradient_at_the_temperature():
    model = small(4, 5, 3)
    batch = data(model)

    def loss(model):
        return F.cross_entropy(model(batch[0]) / TEMPERATURE, batch[1])

    g = gradient(model, loss)
    size = 1e-3 / max(float(part.abs().max()) for part in g)
    ahead, behind = (gradient(moved(model, g, s), loss) for s in (size, -size))
    scores = grasp(model, batch)
    for weight, score, one, two in zip(
        model.parameters(), scores.values(), ahead, behind, strict=True
    ):
        expected = weight.detach() * (one - two) / (2 * size)
        torch.testing.assert_close(score, expected, rtol=1e-4, atol=1e-4 * float(score.abs().max()))


@expects("losses")
def test_the_kept_set_is_the_best_of_all_sets_by_the_first_order_of_the_gradient_norm():
    model = small(2, 2, 2)
    inputs, targets = data(model)

    def loss_fn(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1])

    def norm(weights):
        live = [w.view(2, 2) for w in weights.split(4)]
        hidden = torch.tanh(inputs @ live[0].T)
        loss = F.cross_entropy(hidden @ live[1].T, targets)
        return sum((g**2).sum() for g in torch.autograd.grad(loss, weights, create_graph=True))

    weights = torch.cat([w.detach().flatten() for w in model.parameters()]).requires_grad_()
    (slope,) = torch.autograd.grad(norm(weights), weights)  # = 2 H g

    def change(removed):  # of the squared norm, if these weights became zero, to first order
        return -sum(float(slope[i] * weights[i]) for i in removed)

    best = min(combinations(range(8), 5), key=lambda removed: -change(removed))
    masks = snip.prune(model, (inputs, targets), sparsity=5 / 8, method="grasp", loss_fn=loss_fn)
    kept = torch.cat([mask.flatten() for mask in masks.values()])
    assert {i for i in range(8) if not kept[i]} == set(best)


def test_two_halves_of_a_batch_count_as_the_whole():
    model = small(4, 5, 3)
    inputs, targets = data(model, 7)
    by_class = targets.argsort()  # the halves see other classes
    one, two = by_class[:4], by_class[4:]
    whole = grasp(model, (inputs, targets))
    halves = grasp(model, iter([(inputs[one], targets[one]), (inputs[two], targets[two])]))
    for name, score in whole.items():
        torch.testing.assert_close(halves[name], score)


def test_a_loss_of_the_users_is_taken_as_it_is():
    model = small(3, 2)
    inputs, _ = data(model)
    scores = grasp(model, inputs, lambda m, x: (m(x) ** 2).sum() / 2)
    second = inputs.T @ inputs  # the Hessian of each output's row
    weight = model[0].weight.detach()
    torch.testing.assert_close(scores["0.weight"], weight * (weight @ second @ second))


def test_layers_that_torch_differentiates_once_by_default_are_computed_plainly():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(4, 8, batch_first=True)
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.head = nn.Linear(8, 3)

        def forward(self, x):
            x = self.rnn(x)[0]
            return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))

    model, targets = Net(), torch.arange(5) % 3
    scores = grasp(model, (torch.randn(5, 6, 4), targets))
    assert all(score.any() for name, score in scores.items() if name.endswith("weight"))


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        return gradient.clone()


def test_a_layer_that_is_differentiated_only_once_is_named_and_nothing_changed():
    model = small(4, 5, 3)
    batch, before = data(model), copy.deepcopy(model.state_dict())

    def loss_fn(model, batch):  # of two ways only one is differentiated once
        logits = model(batch[0])
        return F.cross_entropy(logits + Once.apply(logits), batch[1])

    with pytest.raises(snip.InputError, match=r"twice.*only once.*snip or force"):
        snip.prune(model, batch, sparsity=0.5, method="grasp", loss_fn=loss_fn)
    assert snip.held_masks(model) is None
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("reduction", ["sum_of_abs", "ema"])
def test_a_reduction_that_loses_signs_is_refused(reduction):
    model = small(4, 5, 3)
    with pytest.raises(snip.InputError, match=f"reduction is '{reduction}'.*use 'abs_of_sum'"):
        grasp(model, data(model), scoring=snip.Scoring(reduction=reduction))


def test_signed_scores_keep_the_budget_of_flops_and_a_part_under_a_norm():
    model = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(6, 5)), nn.Tanh(), nn.Linear(5, 3)
    )
    batch = torch.randn(6, 6), torch.arange(6) % 3
    cheap = snip.prune(
        copy.deepcopy(model), batch, sparsity=0.6, method="grasp", budget="flops", biases="keep"
    )
    assert cheap.kept == 18  # of 45 that cost the same
    masks = snip.prune(model, batch, sparsity=0.7, method="grasp", biases="keep")
    assert masks["0.parametrizations.weight.original1"].any(1).all()
