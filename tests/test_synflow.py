"""SynFlow: the law that its scores obey, and that no layer collapses where others' do."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from expected_warnings import expects
from networks import chain, make
from torch import nn

import snip
from snip.masks import empty_layers
from snip.methods import METHODS
from snip.methods.kinds import exponential
from snip.methods.synflow import linearized, synflow


class Net(nn.Module):
    """Convolutions, a batch norm, pooling and linear layers in a row."""

    def __init__(self):
        super().__init__()
        self.conv1, self.norm = nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 5, 3, stride=2)
        self.fc1, self.fc2 = nn.Linear(5, 7), nn.Linear(7, 4)

    def forward(self, x):
        x = F.relu(self.norm(self.conv1(x)))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2).flatten(1)
        return self.fc2(F.relu(self.fc1(x)))


def batch(samples=3):
    return torch.randn(samples, 2, 8, 8), torch.arange(samples) % 4


def test_the_flow_through_every_layer_is_the_sum_of_the_outputs():
    model = Net()
    scores = synflow(model, batch())
    linear = linearized(model)
    flow = linear(torch.ones(1, 2, 8, 8, dtype=torch.float64)).sum().detach()
    for layer in ("conv1", "conv2", "fc1", "fc2"):
        torch.testing.assert_close(scores[f"{layer}.weight"].sum(), flow)
        assert not scores[f"{layer}.bias"].any()  # they add to the flow, and carry none


def test_the_flow_through_every_unit_comes_in_as_it_goes_out():
    model = Net()
    scores = synflow(model, batch())
    into, out_of = scores["fc1.weight"].sum(1), scores["fc2.weight"].sum(0)
    torch.testing.assert_close(into, out_of)


@pytest.mark.parametrize("sparsity", [0.5, 0.95])
@expects("losses")
def test_the_law_holds_for_what_a_pruning_leaves(sparsity):
    model = Net()
    few = replace(METHODS["synflow"], rounds=exponential(20))
    snip.prune(model, batch(), sparsity=sparsity, method=few)
    scores = synflow(model, batch())
    flows = [scores[f"{layer}.weight"].sum() for layer in ("conv1", "conv2", "fc1", "fc2")]
    assert flows[0] > 0
    for flow in flows:
        torch.testing.assert_close(flow, flows[0])


def test_no_layer_collapses_where_those_of_snip_and_magnitude_do():
    model, data = chain()
    sparsity = 1 - 21 / 26_580  # three connections for each of seven layers
    for method in ("snip", "magnitude"):
        with pytest.warns(snip.SnipWarning, match="no path"):
            masks = snip.prune(
                copy.deepcopy(model), data, sparsity=sparsity, method=method, floor=0
            )
        assert empty_layers(masks)
    masks = snip.prune(model, data, sparsity=sparsity, method="synflow", floor=0)
    assert masks.kept == 21
    assert masks.provenance.rounds > 50
    assert not empty_layers(masks)
    assert model(torch.ones(1, 12)).any()  # a path is left


def test_scores_need_no_data_no_mode_and_no_training_statistics():
    model = Net()
    one = synflow(model, batch())
    model.eval()
    two = synflow(model, torch.randn(1, 2, 8, 8))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert {score.dtype for score in one.values()} == {torch.float64}


def test_a_deep_network_whose_flow_float32_cannot_hold():
    model = nn.Sequential(*[nn.Linear(64, 64, bias=False) for _ in range(40)])
    for layer in model:
        nn.init.normal_(layer.weight)
    scores = synflow(model, torch.randn(2, 64))
    flow = scores["0.weight"].sum()
    assert 1e39 < flow < 1e300
    torch.testing.assert_close(scores["39.weight"].sum(), flow)


def test_token_ids_stay_and_keywords_and_losses_inside_are_understood():
    model, (ids, targets) = make("language")
    scores = synflow(model, (ids, targets), params=lambda n, m, p: isinstance(m, nn.Linear))
    assert scores["body.weight"].any()

    class WithLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(4, 3, bias=False)

        def forward(self, values, labels):
            logits = self.body(values)
            return {"loss": F.cross_entropy(logits, labels), "logits": logits}

    model = WithLoss()
    data = {"values": torch.randn(5, 4), "labels": torch.arange(5) % 3}
    scores = synflow(model, data, lambda model, batch: model(**batch)["loss"])
    # Five samples, because labels are no reals and all are kept.
    torch.testing.assert_close(scores["body.weight"], 5 * model.body.weight.detach().abs().double())


def test_a_time_first_batch_and_a_hidden_state_that_the_forward_makes():
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.head = nn.RNNCell(4, 5), nn.Linear(5, 3)

        def forward(self, x):
            state = torch.zeros(x.shape[1], 5)
            for step in x:
                state = self.cell(step, state)
            return self.head(state)

    scoring = snip.Scoring(batch_dim=1)
    scores = synflow(Cell(), torch.randn(6, 2, 4), scoring=scoring)
    assert all(scores[f"{name}.weight"].any() for name in ("head",))
    assert scores["cell.weight_hh"].any()
    assert torch.get_default_dtype() == torch.float32


def test_what_does_not_run_on_ones_in_float64_is_said():
    class Stubborn(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(4, 3)

        def forward(self, x):
            return self.body(x.float())

    with pytest.raises(snip.InputError, match=r"float64 on an input of ones.*use another"):
        synflow(Stubborn(), torch.randn(2, 4))
    with pytest.raises(snip.InputError, match="does not call the model"):
        synflow(nn.Linear(4, 3), torch.randn(2, 4), lambda model, x: x.sum())
