"""Initialising a whole network: seeds, norms, ties, masks, and what is left alone."""

import copy
import math

import pytest
import torch
from torch import nn

from snip.common.errors import InputError, KindError
from snip.masks import Masks
from snip.models.initializers import INITIALIZERS, initialize


def flat_state(model: nn.Module) -> torch.Tensor:
    return torch.cat([t.detach().double().flatten() for t in model.state_dict().values()])


def mixed() -> nn.ModuleDict:
    return nn.ModuleDict(
        {
            "embedding": nn.Embedding(5, 4),
            "conv": nn.Conv2d(3, 4, 3),
            "norm": nn.BatchNorm2d(4),
            "rnn": nn.GRU(4, 4),
            "attention": nn.MultiheadAttention(4, 2, add_bias_kv=True),
            "layer_norm": nn.LayerNorm(4),
            "own": nn.ParameterList([nn.Parameter(torch.ones(3))]),
        }
    )


def test_biases_are_zero_and_norms_are_reset() -> None:
    model = mixed()
    norm = model["norm"]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7.0)
    norm(torch.randn(8, 4, 3, 3))
    initialize(model, seed=0)
    zero = ("conv.bias", "rnn.bias_ih_l0", "rnn.bias_hh_l0", "norm.bias", "layer_norm.bias")
    for name in (*zero, "attention.in_proj_bias", "attention.out_proj.bias", "norm.running_mean"):
        assert model.state_dict()[name].eq(0).all(), name
    for name in ("norm.weight", "layer_norm.weight", "norm.running_var"):
        assert model.state_dict()[name].eq(1).all(), name
    assert norm.num_batches_tracked == 0
    for name in ("embedding.weight", "own.0", "attention.bias_k", "attention.bias_v"):
        assert model.get_parameter(name).eq(7).all(), name


def test_frozen_parts_keep_their_values() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model[1](torch.randn(8, 4) + 3)
    model[:2].requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    initialize(model, seed=0)
    changed = {name for name, value in model.state_dict().items() if not value.equal(before[name])}
    assert changed == {"2.weight", "2.bias"}


def test_statistics_without_parameters_are_reset() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False))
    model(torch.randn(8, 4) + 3)
    initialize(model)
    assert model[1].running_mean.eq(0).all()


def test_a_seed_repeats_and_leaves_the_global_generator_alone() -> None:
    models = [mixed()["conv"], mixed()["conv"], mixed()["conv"]]
    state = torch.get_rng_state()
    for model, seed in zip(models, (3, 3, 4), strict=True):
        initialize(model, seed=seed)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(models[0].weight, models[1].weight)
    assert not torch.equal(models[0].weight, models[2].weight)


def test_without_a_seed_the_global_generator_decides() -> None:
    layer = nn.Linear(3, 3)
    torch.manual_seed(5)
    initialize(layer)
    first = layer.weight.clone()
    initialize(layer)
    assert not torch.equal(layer.weight, first)
    torch.manual_seed(5)
    initialize(layer)
    assert torch.equal(layer.weight, first)


def test_a_seed_means_the_same_network_in_every_dtype() -> None:
    layers = [nn.Linear(9, 9).to(dtype) for dtype in (torch.float32, torch.float64, torch.bfloat16)]
    for layer in layers:
        initialize(layer, seed=2)
    assert torch.equal(layers[0].weight.double(), layers[1].weight)
    assert torch.equal(layers[0].weight.bfloat16(), layers[2].weight)


def test_tied_parameters_are_drawn_once() -> None:
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    plain = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    initialize(tied, seed=0)
    initialize(plain, seed=0)
    assert tied[1].weight is tied[0].weight
    assert torch.equal(tied[0].weight, plain[0].weight)
    assert torch.equal(tied[2].weight, plain[1].weight)  # the tied one took no second draw


def test_a_weight_shared_with_an_embedding_is_an_embedding() -> None:
    model = nn.ModuleDict({"head": nn.Linear(4, 9), "embedding": nn.Embedding(9, 4)})
    model["embedding"].weight = model["head"].weight
    before = model["head"].weight.clone()
    initialize(model)
    assert torch.equal(model["head"].weight, before)


@pytest.mark.parametrize("name", INITIALIZERS)
def test_pruned_weights_stay_zero(name: str) -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
    keep = {"0.weight": torch.rand(5, 6) > 0.9, "2.weight": torch.rand(2, 5) > 0.3}
    Masks(keep).apply(model)
    before = model[2].weight.clone()
    initialize(model, name, seed=3)
    for parameter, mask in (
        (model[0].weight, keep["0.weight"]),
        (model[2].weight, keep["2.weight"]),
    ):
        assert parameter[~mask].eq(0).all()
        assert parameter[mask].ne(0).all()
    assert not torch.equal(model[2].weight, before)


def test_wrapped_models_are_drawn_like_plain_ones() -> None:
    plain = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    wrapped = copy.deepcopy(plain)
    initialize(plain, seed=0)
    initialize(torch.compile(wrapped, backend="eager"), seed=0)
    assert torch.equal(flat_state(plain), flat_state(wrapped))


def test_layers_it_does_not_know_are_left_alone() -> None:
    model = nn.Sequential(nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)), nn.Linear(4, 4))
    before = model[0].weight.clone()
    initialize(model, seed=0)
    assert torch.equal(model[0].weight, before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "vsx"}, "did you mean 'vs-x'"),
        ({"name": "vs", "biases": "zeros"}, "unknown initializer 'zeros'"),
        ({"name": "vs", "std": 0.1}, "leave std out"),
        ({"name": "rn", "std": 0.0}, "positive"),
        ({"name": "tn", "std": math.nan}, "positive"),
    ],
)
def test_bad_arguments_change_nothing(arguments: dict, message: str) -> None:
    layer = nn.Linear(3, 3)
    before = flat_state(layer)
    with pytest.raises(InputError, match=message):
        initialize(layer, **arguments)
    assert torch.equal(flat_state(layer), before)


def test_bad_models_and_seeds() -> None:
    with pytest.raises(KindError, match="seed='1'"):
        initialize(nn.Linear(3, 3), seed="1")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="to initialise"):
        initialize(nn.Embedding(3, 3))
    with pytest.raises(InputError, match="lazy"):
        initialize(nn.LazyLinear(3))
