"""Initialisers: their distribution, the fans of every layer type, seeds, and what is left alone."""

import copy
import math

import pytest
import torch
from torch import nn

from snip.common.errors import InputError, KindError
from snip.masks import Masks
from snip.models.initializers import INITIALIZERS, TRUNCATED_STD, fans, initialize

VARIANCE = {"vs": 1 / 400, "vs-h": 2 / 400, "vs-x": 2 / (400 + 1000)}


def flat_state(model: nn.Module) -> torch.Tensor:
    return torch.cat([t.detach().double().flatten() for t in model.state_dict().values()])


def test_truncated_std_is_that_of_the_cut_normal() -> None:
    density = math.exp(-2.0) / math.sqrt(2 * math.pi)  # of the standard normal at 2
    inside = math.erf(2 / math.sqrt(2))
    assert math.sqrt(1 - 4 * density / inside) == pytest.approx(TRUNCATED_STD, rel=1e-12)


@pytest.mark.parametrize("name", VARIANCE)
def test_variance_scaling_has_its_std_after_the_cut(name: str) -> None:
    layer = nn.Linear(400, 1000)
    initialize(layer, name, seed=1)
    std = math.sqrt(VARIANCE[name])
    weight = layer.weight.detach()
    assert weight.std().item() == pytest.approx(std, rel=0.01)
    assert weight.mean().item() == pytest.approx(0, abs=0.01 * std)
    bound = 2 * std / TRUNCATED_STD
    assert 0.999 * bound < weight.abs().max().item() <= bound * (1 + 1e-6)
    # Share of a normal cut at two sigma that lies within one sigma: 0.6827 / 0.9545.
    within = (weight.abs() < bound / 2).double().mean().item()
    assert within == pytest.approx(0.7152, abs=0.003)


@pytest.mark.parametrize("std", [None, 0.05])
def test_random_normals_ignore_the_fans(std: float | None) -> None:
    layer = nn.Linear(400, 1000)
    width = 1.0 if std is None else std
    initialize(layer, "rn", seed=1, std=std)
    assert layer.weight.std().item() == pytest.approx(width, rel=0.01)
    assert layer.weight.abs().max().item() > 4 * width
    initialize(layer, "tn", seed=1, std=std)
    # TensorFlow's truncated normal is not rescaled: the cut takes 12% of the width.
    assert layer.weight.std().item() == pytest.approx(TRUNCATED_STD * width, rel=0.01)
    assert layer.weight.abs().max().item() <= 2 * width * (1 + 1e-6)


FANS = [  # layer, parameter, inputs that a unit sums, units that an input feeds
    (nn.Linear(7, 5), "weight", 7, 5),
    (nn.Bilinear(3, 4, 5), "weight", 12, 5),
    (nn.Conv1d(6, 8, 3), "weight", 18, 24),
    (nn.Conv2d(6, 8, (3, 5)), "weight", 6 * 15, 8 * 15),
    (nn.Conv2d(6, 8, 3, groups=2), "weight", 3 * 9, 4 * 9),
    (nn.Conv2d(6, 6, 3, groups=6), "weight", 9, 9),
    (nn.Conv3d(2, 4, 2), "weight", 16, 32),
    (nn.ConvTranspose2d(6, 8, 3), "weight", 6 * 9, 8 * 9),
    (nn.ConvTranspose2d(6, 8, 3, groups=2), "weight", 3 * 9, 4 * 9),
    (nn.ConvTranspose1d(4, 2, 5), "weight", 20, 10),
    (nn.LSTM(7, 5), "weight_ih_l0", 7, 5),
    (nn.LSTM(7, 5), "weight_hh_l0", 5, 5),
    (nn.LSTM(7, 5, proj_size=3), "weight_hh_l0", 3, 5),
    (nn.LSTM(7, 5, proj_size=3), "weight_hr_l0", 5, 3),
    (nn.LSTM(7, 5, 2, bidirectional=True), "weight_ih_l1_reverse", 10, 5),
    (nn.GRU(7, 5), "weight_ih_l0", 7, 5),
    (nn.RNN(7, 5), "weight_hh_l0", 5, 5),
    (nn.LSTMCell(7, 5), "weight_ih", 7, 5),
    (nn.GRUCell(7, 5), "weight_hh", 5, 5),
    (nn.RNNCell(7, 5), "weight_ih", 7, 5),
    (nn.MultiheadAttention(6, 2), "in_proj_weight", 6, 6),
    (nn.MultiheadAttention(6, 2, kdim=4, vdim=3), "k_proj_weight", 4, 6),
    (nn.MultiheadAttention(6, 2, kdim=4, vdim=3), "v_proj_weight", 3, 6),
    (nn.MultiheadAttention(6, 2), "out_proj.weight", 6, 6),
    (nn.LSTM(7, 5), "bias_ih_l0", 5, 5),
    (nn.MultiheadAttention(6, 2), "in_proj_bias", 6, 6),
    (nn.Conv2d(6, 8, 3), "bias", 8, 8),
]


@pytest.mark.parametrize(("layer", "name", "fan_in", "fan_out"), FANS)
def test_fans(layer: nn.Module, name: str, fan_in: int, fan_out: int) -> None:
    owner, _, key = name.rpartition(".")
    parameter = layer.get_parameter(name)
    assert fans(layer.get_submodule(owner), key, parameter) == (fan_in, fan_out)


def test_every_gate_is_drawn_by_its_own_fans() -> None:
    lstm = nn.LSTM(400, 100)
    initialize(lstm, "vs-x", seed=0)
    for gate in lstm.weight_ih_l0.detach().chunk(4):  # [100, 400] each
        assert gate.std().item() == pytest.approx(math.sqrt(2 / 500), rel=0.02)
    attention = nn.MultiheadAttention(200, 2)
    initialize(attention, "vs-x", seed=0)
    for block in attention.in_proj_weight.detach().chunk(3):
        assert block.std().item() == pytest.approx(math.sqrt(2 / 400), rel=0.02)


def test_transposed_convolution_uses_its_inputs() -> None:
    layer = nn.ConvTranspose2d(64, 16, 4)
    initialize(layer, "vs", seed=0)
    assert layer.weight.std().item() == pytest.approx(1 / math.sqrt(64 * 16), rel=0.02)


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


def test_biases_can_be_drawn_like_in_the_authors_first_release() -> None:
    layer = nn.Linear(10, 10_000)
    initialize(layer, "vs", biases="vs", seed=0)
    assert layer.bias.std().item() == pytest.approx(1 / math.sqrt(10_000), rel=0.03)
    weights = layer.weight.clone()
    initialize(layer, "vs", seed=0)
    assert torch.equal(layer.weight, weights)
    assert layer.bias.eq(0).all()


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
