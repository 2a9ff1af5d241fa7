"""Paths from input to output in MLPs against brute force, and a model that is left untouched."""

import copy
import itertools

import pytest
import torch
from connectivity_parts import Strange, all_kept, probe, random_masks
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import snip
from snip.network.network import Network
from snip.network.paths import example_input, follow


def test_broken_chain_in_an_mlp():
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    masks = {
        "0.weight": torch.tensor([[1, 0], [0, 0], [1, 1]]).bool(),
        "0.bias": torch.tensor([1, 1, 1]).bool(),
        "2.weight": torch.tensor([[1, 1, 0], [0, 0, 0]]).bool(),
        "2.bias": torch.tensor([0, 1]).bool(),
    }
    found = probe(model, masks, torch.zeros(4, 2))
    # Unit 1 has no input, unit 2 no output, class 1 nothing at all.
    assert found.effective["0.weight"].tolist() == [[True, False], [False, False], [False, False]]
    assert found.effective["2.weight"].tolist() == [[True, False, False], [False, False, False]]
    # The bias of unit 1 is still heard at the output, that of unit 2 is not.
    assert found.effective["0.bias"].tolist() == [True, True, False]
    assert found.effective["2.bias"].tolist() == [False, True]
    assert (found.dead_outputs, found.outputs, found.connected) == ((1,), 2, True)
    units = Network.of(model).live_units(found.effective)
    assert units["0.weight"].outputs.tolist() == [True, False, False]
    assert units["0.weight"].inputs.tolist() == [True, False]


def test_an_empty_layer_disconnects_everything():
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
    masks = all_kept(model)
    masks["2.weight"] = torch.zeros(3, 3, dtype=torch.bool)
    found = probe(model, masks, torch.zeros(1, 2))
    assert not found.connected
    assert found.dead_outputs == (0, 1)
    assert not any(found.effective[f"{i}.weight"].any() for i in (0, 2, 4))
    assert not found.effective["0.bias"].any()
    assert found.effective["2.bias"].all()


def brute_force(masks):
    """Boolean forward and backward reachability of an MLP without biases."""
    reached = [torch.ones(masks[0].shape[1], dtype=torch.bool)]
    for mask in masks:
        reached.append((mask & reached[-1]).any(1))
    leads = torch.ones(masks[-1].shape[0], dtype=torch.bool)
    effective = []
    for mask, start in zip(reversed(masks), reversed(reached[:-1]), strict=True):
        effective.insert(0, mask & start & leads[:, None])
        leads = (mask & leads[:, None]).any(0)
    return effective


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=2, max_size=6),
    density=st.floats(0.1, 0.9),
    seed=st.integers(0, 2**31),
)
def test_random_mlps_agree_with_brute_force(sizes, density, seed):
    generator = torch.Generator().manual_seed(seed)
    layers = []
    for i, o in itertools.pairwise(sizes):
        layers += [nn.Linear(i, o, bias=False), nn.Sigmoid()]
    model = nn.Sequential(*layers)
    masks = {
        name: torch.rand(p.shape, generator=generator) < density
        for name, p in model.named_parameters()
    }
    found = probe(model, masks, torch.zeros(1, sizes[0]))
    expected = brute_force(list(masks.values()))
    assert all(torch.equal(a, b) for a, b in zip(found.effective.values(), expected, strict=True))


def test_thousand_layers_neither_overflow_nor_underflow():
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(1000)])
    found = probe(model, all_kept(model), torch.zeros(1, 8))
    assert all(mask.all() for mask in found.effective.values())


def test_unpruned_layers_count_as_dense_and_other_types_work():
    model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3), nn.Linear(3, 2)).double()
    masks = {"0.weight": torch.tensor([[True, False], [False, False], [True, False]])}
    found = probe(model, masks, torch.zeros(1, 2, dtype=torch.float64))
    assert torch.equal(found.effective["0.weight"], masks["0.weight"])


def test_the_model_is_left_untouched():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2))
    model[2].eval()
    masks = random_masks(model)
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    pointers = [p.data_ptr() for p in model.parameters()]
    probe(model, masks, torch.randn(3, 3, generator=torch.Generator()))
    assert [m.training for m in model] == [True, True, False, True]
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert pointers == [p.data_ptr() for p in model.parameters()]
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert torch.equal(random, torch.get_rng_state())


def test_what_cannot_be_followed_gives_a_reason():
    model = Strange()
    assert follow(model, all_kept(model), torch.zeros(1, 2)).why_not
    wrong = follow(nn.Linear(2, 2), all_kept(nn.Linear(2, 2)), torch.zeros(1, 5))
    assert "RuntimeError" in wrong.why_not
    assert wrong.effective is None
    assert not torch.is_inference_mode_enabled()


def test_works_inside_no_grad_and_autocast():
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        found = probe(model, all_kept(model), torch.zeros(1, 2))
    assert all(mask.all() for mask in found.effective.values())


def test_example_input_has_shape_and_type():
    example = example_input(nn.Linear(3, 2), [4, 3], "int64")
    assert example.shape == (1, 4, 3)
    assert example.dtype == torch.int64


@pytest.mark.parametrize(("batch_dim", "shape"), [(0, (5, 8, 3)), (1, (5, 1, 3))])
def test_one_sample_is_enough_along_the_dimension_that_counts_them(batch_dim, shape):
    seen = []

    class TimeFirst(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = nn.LSTM(3, 4), nn.Linear(4, 2)

        def forward(self, x):
            seen.append(tuple(x.shape))
            return self.head(self.rnn(x)[0][-1])

    torch.manual_seed(0)
    model, inputs = TimeFirst(), torch.randn(5, 8, 3)
    scoring = snip.Scoring(batch_dim=batch_dim)
    snip.prune(model, (inputs, torch.arange(8) % 2), sparsity=0.3, scoring=scoring)
    seen.clear()
    report = snip.report(model, inputs=inputs)
    assert seen[-1] == shape
    assert report.effective_kept == report.kept
