"""Dynamic network surgery (DNS) against cases made by hand."""

import pytest
import torch
from torch import nn

from snip.methods.dns import Surgery, operated, statistics, thresholds
from snip.training.hooks import replaced


def test_dns_cuts_what_is_small_and_splices_what_is_large() -> None:
    weight = torch.tensor([0.5, -0.89, 0.95, -1.05, 1.2, 0.95, -1.05, 1.2])
    kept = torch.tensor([True, True, True, True, True, False, False, False])
    expected = [False, False, True, True, True, False, False, True]
    assert operated(kept, weight, 1.0).tolist() == expected


def test_dns_thresholds_by_hand() -> None:
    weights = {"a.weight": torch.tensor([[1.0, -3.0]]), "a.bias": torch.tensor([0.0])}
    assert statistics(weights) == {"a": (2.0, 1.0)}  # of |w|, without the zero
    limits = thresholds(weights, dict.fromkeys(weights, 0.0), 1)
    assert limits["a.weight"] == limits["a.bias"]
    assert int((weights["a.weight"].abs() > limits["a.weight"]).sum()) == 1


def test_dns_takes_a_layer_that_is_zero_all_over() -> None:
    weights = {"a.weight": torch.zeros(2, 2), "b.weight": torch.tensor([[1.0, -3.0]])}
    limits = thresholds(weights, dict.fromkeys(weights, 0.0), 1)
    assert limits["a.weight"] == 0.0
    surgery = Surgery({n: nn.Parameter(w) for n, w in weights.items()}, limits, steps=10)
    surgery.before_step(0)
    assert surgery.kept[:4].tolist() == [False] * 4
    assert surgery.kept[5]
    assert all(score.isfinite().all() for score in surgery.scores().values())


def test_dns_brings_back_a_connection_whose_gradient_asks_for_it() -> None:
    model = nn.Linear(2, 1, bias=False)
    model.weight.data = torch.tensor([[0.1, 2.0]])
    surgery = Surgery({"weight": model.weight}, {"weight": 1.0}, steps=10)
    surgery.before_step(0)  # with certainty, the first time
    assert surgery.kept.tolist() == [False, True]
    with replaced(model, surgery.weights_to_train()):
        assert model.weight.tolist() == [[0.0, 2.0]]
        model(torch.tensor([[-1.0, 0.0]])).sum().backward()
    assert model.weight.tolist() == [[pytest.approx(0.1), 2.0]]
    model.weight.data -= 1.5 * model.weight.grad  # though the connection is cut, it grows
    surgery.before_step(0)
    assert surgery.kept.tolist() == [True, True]
    scores = surgery.scores()["weight"].flatten()
    assert scores[0] < scores[1]


def test_dns_keeps_what_it_has_before_what_it_has_cut() -> None:
    """Between the thresholds for cutting and for splicing, the larger weight may be the cut one."""
    weight = nn.Parameter(torch.tensor([0.95, 1.05]))
    surgery = Surgery({"weight": weight}, {"weight": 1.0}, steps=10)
    surgery.kept[1] = False
    scores = surgery.scores()["weight"]
    assert scores[0] > scores[1]
