"""LWC's thresholds where a layer has no deviation: one weight alone, or weights that are equal."""

import pytest
import torch
from expected_warnings import expects
from torch import nn

import snip
from snip.methods.lwc import in_thresholds, thresholds
from snip.training import TrainConfig

TINY = TrainConfig(lr=0.02, iterations=12, lr_drops=())


def scores(**weights: torch.Tensor) -> dict[str, torch.Tensor]:
    return in_thresholds(weights, thresholds(weights, dict.fromkeys(weights, 1.0)))


def test_weights_are_ranked_in_deviations_of_their_layer() -> None:
    weight = torch.tensor([[1.0, -1.0, 2.0, -2.0]])
    found = scores(wide=weight, narrow=weight / 8)
    assert torch.allclose(found["wide"], weight.abs() / weight.std())
    assert torch.equal(found["wide"], found["narrow"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("value", [5.0, -0.1, 1e-3, 300.0])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7)])
def test_one_weight_and_equal_weights_have_the_score_of_their_mean(
    shape: tuple[int, ...], value: float, dtype: torch.dtype
) -> None:
    found = scores(w=torch.full(shape, value, dtype=dtype))["w"]
    assert torch.allclose(found, torch.ones_like(found))


def test_a_layer_that_is_zero_all_over_goes_first() -> None:
    assert not scores(w=torch.zeros(2, 3))["w"].any()


@pytest.mark.filterwarnings("ignore:nothing is left")
def test_lwc_takes_a_network_with_a_weight_of_one_element() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 3))
    batches = [(torch.randn(20, 1), torch.arange(20) % 3)]
    masks = snip.prune(model, batches, sparsity=0.5, method="lwc", training=TINY)
    assert (masks.kept, masks.total) == (2, 4)


@expects("left out", "losses")
def test_lwc_takes_a_layer_of_equal_weights() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    nn.init.constant_(model[0].weight, 5.0)
    batches = [(torch.randn(20, 4), torch.arange(20) % 3)]
    masks = snip.prune(model, batches, sparsity=0.5, method="lwc", training=TINY)
    assert masks.kept == 21
