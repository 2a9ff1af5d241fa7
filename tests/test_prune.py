"""Algorithm 1 as a user calls it."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from expected_warnings import expects
from networks import KINDS, make
from torch import nn

import snip
from snip.network.network import Network
from snip.selection.costs import flops


@pytest.mark.parametrize("kind", KINDS)
@expects("left out", "losses")
def test_prunes_exactly_and_leaves_the_survivors_alone(kind):
    model, batch = make(kind)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    masks = snip.prune(model, batch, sparsity=0.6)
    assert masks.kept == round(masks.total * 0.4)
    masks.check(model)
    for name, parameter in model.named_parameters():
        kept = masks[name] if name in masks else torch.ones_like(before[name]).bool()
        assert torch.equal(parameter[kept], before[name][kept])


def test_it_is_the_composition_of_its_stages():
    model, batch = make("conv")
    twin = copy.deepcopy(model)
    masks = snip.prune(model, batch, sparsity=0.6)
    scores = snip.connection_sensitivity(twin, batch)
    staged = snip.select(scores, sparsity=0.6)
    staged.apply(twin)
    assert staged == masks
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True)
    )


def test_keeps_the_most_sensitive_connections():
    model, batch = make("mlp")
    scores = snip.connection_sensitivity(model, batch)
    masks = snip.prune(model, batch, sparsity=0.6)
    kept = torch.cat([scores[n][masks[n]] for n in masks])
    lost = torch.cat([scores[n][~masks[n]] for n in masks])
    assert kept.min() >= lost.max()


def test_provenance_says_what_was_done(tmp_path):
    model, (inputs, targets) = make("conv")
    loader = [(inputs[:3], targets[:3]), (inputs[3:], targets[3:])]
    masks = snip.prune(model, loader, sparsity=0.6, scoring=snip.Scoring("sum_of_abs"))
    masks.save(tmp_path / "m.safetensors")
    note = snip.Masks.load(tmp_path / "m.safetensors").provenance
    assert note == masks.provenance
    assert note.method == "snip"
    assert (note.sparsity_asked, note.scope, note.floor) == (0.6, "global", 0.0)
    assert (note.batches, note.samples, note.reduction) == (2, 5, "sum_of_abs")
    assert (note.decay, note.batch_norm, note.loss_reduction, note.batch_dim) == (
        0.9, "train", "mean", 0,
    )  # fmt: skip
    assert note.zero_parts == "woken"
    assert (note.budget, note.loss) == ("connections", "cross_entropy")
    assert note.seed == torch.initial_seed()
    assert (note.input_shape, note.input_dtype) == ((2, 4, 4), "float32")
    assert note.left_out["norm.weight"] == "normalisation layer"
    assert note.versions["torch"] == str(torch.__version__)
    assert note.uses["conv.weight"] == 16


def test_a_generator_of_batches_and_a_loss_of_ones_own():
    model, (inputs, targets) = make("mlp")

    def loss(model, batch):
        return F.mse_loss(model(batch["x"]), F.one_hot(batch["y"], 3).float())

    batches = ({"x": inputs[i : i + 1], "y": targets[i : i + 1]} for i in range(5))
    masks = snip.prune(model, batches, sparsity=0.5, loss_fn=loss)
    assert masks.provenance.batches == 5
    assert "loss" in masks.provenance.loss


def test_both_protocols():
    model, batch = make("mlp")
    redrawn = copy.deepcopy(model)
    masks = snip.prune(model, batch, sparsity=0.6)
    other = snip.prune(redrawn, batch, sparsity=0.6)
    snip.initialize(redrawn, "vs")
    assert other == masks == snip.held_masks(redrawn)
    masks.check(redrawn)
    kept = masks["first.weight"]
    assert not torch.equal(model.first.weight[kept], redrawn.first.weight[kept])
    assert redrawn.first.weight[kept].all()

    def mine(model):
        for parameter in model.parameters():
            nn.init.constant_(parameter, 3.0)

    third, batch = make("mlp")
    masks = snip.prune(third, batch, sparsity=0.6)
    mine(third)
    masks.apply(third)
    assert third.first.weight[masks["first.weight"]].eq(3).all()
    masks.check(third)


def test_pruning_further_stays_inside():
    model, batch = make("mlp")
    first = snip.prune(model, batch, sparsity=0.5)
    second = snip.prune(model, batch, sparsity=0.8)
    assert second.kept == round(second.total * 0.2)
    assert (first & second) == second
    with pytest.raises(snip.InputError, match="pruned already"):
        snip.prune(model, batch, sparsity=0.5)
    assert snip.held_masks(model) == second


def test_idempotent_at_the_same_sparsity():
    model, batch = make("mlp")
    first = snip.prune(model, batch, sparsity=0.8)
    again = snip.prune(model, batch, sparsity=0.8)
    assert first == again


def test_sparsity_zero_keeps_everything():
    model, batch = make("mlp")
    before = model.first.weight.detach().clone()
    assert snip.prune(model, batch, sparsity=0).sparsity == 0
    assert torch.equal(model.first.weight, before)


def test_a_tied_weight_is_pruned_once_in_both_places():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 4, bias=False))
    model[2].weight = model[0].weight
    masks = snip.prune(model, (torch.randn(5, 4), torch.randint(0, 4, (5,))), sparsity=0.5)
    assert masks.total == 16
    assert torch.equal(model[2].weight != 0, masks["0.weight"])


def test_a_flop_budget_saves_flops():
    model, batch = make("residual")
    twin = copy.deepcopy(model)
    by_count = snip.prune(model, batch, sparsity=0.7)
    by_flops = snip.prune(twin, batch, sparsity=0.7, budget="flops")
    uses = by_flops.provenance.uses
    dense = flops({n: torch.ones_like(m) for n, m in by_flops.items()}, uses)
    assert flops(by_flops, uses) <= 0.3 * dense
    assert by_flops["head.weight"].sum() >= by_count["head.weight"].sum()  # used once: cheap
    assert by_flops.provenance.budget == "flops"
    with pytest.raises(snip.InputError, match="'flops'"):
        snip.prune(model, batch, sparsity=0.8, budget="flop")


def test_a_redraw_that_puts_new_parameters_in_place():
    def mine(model):
        model.first = nn.Linear(6, 8)
        model.second.weight = nn.Parameter(torch.ones(3, 8))

    model, batch = make("mlp")
    masks = snip.prune(model, batch, sparsity=0.6)
    mine(model)
    masks.apply(model)
    masks.check(model)
    assert snip.held_masks(model) == masks
    assert model.second.weight[masks["second.weight"]].eq(1).all()


def test_biases_alone_can_be_pruned():
    model, batch = make("mlp")
    masks = snip.prune(model, batch, sparsity=0.5, params=lambda n, m, p: p.ndim == 1)
    assert list(masks) == ["first.bias", "second.bias"]


@pytest.mark.parametrize("kind", KINDS)
@expects("left out", "losses")
def test_biases_that_are_kept_do_not_compete(kind):
    model, batch = make(kind)
    before = {n: p.detach().clone() for n, p in model.named_parameters() if p.ndim == 1}
    masks = snip.prune(model, batch, sparsity=0.6, biases="keep")
    assert all(mask.ndim > 1 for mask in masks.values())
    assert masks.kept == round(masks.total * 0.4)
    assert all(torch.equal(dict(model.named_parameters())[n], b) for n, b in before.items())
    reasons = masks.provenance.left_out
    biases = [name for name in snip.prunable_parameters(model) if name not in masks]
    assert biases
    assert all(reasons[name] == "bias, kept" for name in biases)


@expects("losses")
def test_numbers_of_numpy_can_be_saved(tmp_path):
    model, batch = make("mlp")
    masks = snip.prune(model, batch, sparsity=np.float32(0.5), floor=np.float64(0.1))
    masks.save(tmp_path / "m")
    again = snip.prune(model, batch, sparsity=0.8, scope={"first": np.float32(0.75)})
    again.save(tmp_path / "m")


def test_time_first_batches_are_weighted_by_their_samples():
    class Gru(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = nn.GRU(4, 8), nn.Linear(8, 3)

        def forward(self, x):
            return self.head(self.rnn(x)[0][-1])

    model, x, y = Gru(), torch.randn(7, 20, 4), torch.randint(0, 3, (20,))
    pieces = [(x[:, :15], y[:15]), (x[:, 15:], y[15:])]
    whole = snip.connection_sensitivity(model, (x, y))
    scoring = snip.Scoring(batch_dim=1)
    cut = snip.connection_sensitivity(model, pieces, scoring=scoring)
    torch.testing.assert_close(cut, whole)
    assert snip.prune(model, pieces, sparsity=0.5, scoring=scoring).provenance.samples == 20


class Overwriting(nn.Module):
    """Adds one to its input, in place."""

    def __init__(self):
        super().__init__()
        self.hidden, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.hidden(x.add_(1)).relu())


@pytest.mark.parametrize("method", ["snip", "random", "magnitude", "synflow", "grasp", "force"])
@expects("losses")
def test_a_forward_that_writes_into_its_input_finds_the_same_batch_every_time(method):
    torch.manual_seed(0)
    model, images, labels = Overwriting(), torch.ones(6, 4), torch.arange(6) % 3
    masks = snip.prune(model, (images, labels), sparsity=0.3, method=method)
    snip.report(model, masks, inputs=images)
    snip.report(model, masks, inputs=(images,))
    assert torch.equal(images, torch.ones(6, 4))


@pytest.mark.parametrize("method", ["snip", "iter-snip", "lwc"])
@expects("losses", "rounds")
def test_the_predicate_is_asked_once_for_each_name(method):
    model, batch = make("conv")
    asked = []

    def params(name, module, parameter):
        asked.append(name)
        return parameter.ndim > 1

    training = snip.TrainConfig(iterations=2, batch_size=4) if method == "lwc" else None
    snip.prune(model, batch, sparsity=0.6, params=params, method=method, training=training)
    assert sorted(asked) == sorted(name for name, _ in model.named_parameters())


@pytest.mark.parametrize("method", ["snip", "magnitude"])
def test_a_call_without_a_tensor_has_no_known_cost(method):
    class Graph:
        def __init__(self, x):
            self.x = x

    class Reads(nn.Sequential):
        def forward(self, graph):
            return super().forward(graph.x)

    def loss(model, batch):
        return nn.functional.cross_entropy(model(Graph(batch[0])), batch[1])

    model = Reads(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    batch = torch.randn(9, 6), torch.arange(9) % 3
    settings = {"sparsity": 0.5, "loss_fn": loss, "method": method}
    with pytest.raises(snip.InputError, match="FLOPs"):
        snip.prune(model, batch, budget="flops", **settings)
    masks = snip.prune(model, batch, **settings)
    assert masks.kept == 42
    assert masks.provenance.uses == {}


def test_a_network_that_was_read_takes_no_other_parameters():
    network = Network.of(nn.Linear(3, 2))
    with pytest.raises(snip.KindError, match="params"):
        snip.prune(network, params=lambda n, m, p: True, sparsity=0.5, method="random")


def test_scores_of_a_method_of_ones_own_must_be_of_the_model():
    def own(model, batches, loss_fn=None, **settings):
        return {"second.wieght": torch.ones(3, 5)}

    model, batch = make("mlp")
    with pytest.raises(snip.InputError, match=r"'second\.wieght'.*'second\.weight'"):
        snip.prune(model, batch, sparsity=0.5, method=own)
    assert snip.held_masks(model) is None
