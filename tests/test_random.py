"""Random, ERK and magnitude: exact counts, the published densities, no say of the weights."""

import copy

import pytest
import torch
from networks import make

import snip
from snip.methods.baselines import random_scores
from snip.models import build


def test_a_seed_repeats_random_masks_and_a_second_draw_differs():
    model, batch = make("mlp")
    drawn = []
    for seed in (3, None, 3):
        if seed is not None:
            torch.manual_seed(seed)
        drawn.append(snip.prune(copy.deepcopy(model), batch, sparsity=0.5, method="random"))
    assert drawn[0] == drawn[2]
    assert drawn[0] != drawn[1]


def test_random_scores_are_uniform_and_have_nothing_to_do_with_weights_of_the_same_seed():
    torch.manual_seed(5)
    model = torch.nn.Linear(200, 100, bias=False)  # drawn uniformly by torch
    torch.manual_seed(5)
    scores = random_scores(model)["weight"].flatten()
    together = torch.stack([scores, model.weight.detach().flatten()])
    assert abs(float(torch.corrcoef(together)[0, 1])) < 0.02  # 2.8 deviations of 20,000 numbers
    tenths = torch.histc(scores, bins=10, min=0, max=1)
    assert ((tenths - 2000).abs() < 150).all()  # 3.5 deviations


def test_every_connection_is_as_likely_to_stay():
    model, _ = make("mlp")
    counts = dict.fromkeys(snip.prunable_parameters(model), 0)
    for _ in range(200):
        masks = snip.select(random_scores(model), sparsity=0.5)
        counts = {name: count + masks[name] for name, count in counts.items()}
    share = torch.cat([count.flatten() / 200 for count in counts.values()])
    assert float(share.mean()) == pytest.approx(masks.kept / masks.total)
    assert float((share - 0.5).abs().max()) < 0.15  # 4.2 deviations


# From the table in the spec sheets: computed for the weights alone.
ERK = {
    ("lenet-300-100", 0.90): (0.0796, 0.2302, 1),
    ("lenet-300-100", 0.95): (0.0385, 0.1113, 0.9185),
    ("lenet-300-100", 0.98): (0.0154, 0.0445, 0.3674),
    ("lenet-300-100", 0.99): (0.0077, 0.0223, 0.1837),
    ("lenet-5-caffe", 0.90): (1, 0.0871, 0.0884, 1),
    ("lenet-5-caffe", 0.95): (0.7261, 0.0375, 0.0381, 1),
    ("lenet-5-caffe", 0.98): (0.2779, 0.0143, 0.0146, 0.4572),
    ("lenet-5-caffe", 0.99): (0.1389, 0.0072, 0.0073, 0.2286),
}


@pytest.mark.parametrize(("network", "sparsity"), ERK)
def test_erk_has_the_published_densities(network, sparsity):
    model = build(network, seed=0)
    batch = torch.randn(2, 1, 28, 28)
    masks = snip.prune(model, batch, sparsity=sparsity, method="erk", biases="keep")
    for name, density in zip(masks, ERK[network, sparsity], strict=True):
        # A count is whole: within one connection of the table's four digits.
        assert abs(masks.density(name) - density) <= 0.5e-4 + 1 / masks[name].numel()


def test_magnitude_keeps_the_largest_weights_and_so_empties_layers_of_many_inputs():
    model = build("lenet-300-100", seed=0)
    masks = snip.prune(model, torch.randn(2, 1, 28, 28), sparsity=0.9, method="magnitude")
    weights = build("lenet-300-100", seed=0).state_dict()
    kept = torch.cat([weights[name][mask].abs() for name, mask in masks.items()])
    gone = torch.cat([weights[name][~mask].abs() for name, mask in masks.items()])
    assert kept.min() >= gone.max()
    densities = [masks.density(f"fc{k}.weight") for k in (1, 2, 3)]
    assert densities == sorted(densities)
