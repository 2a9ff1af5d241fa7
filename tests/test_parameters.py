"""Which parameters count, which stay out, and the reasons given."""

import re
import warnings

import pytest
import torch
from expected_warnings import expects
from networks import make
from torch import nn

import snip
from snip.network.network import Network


def names(model, predicate=None):
    return list(snip.prunable_parameters(model, predicate))


def test_layers_of_every_kind():
    model = nn.ModuleDict(
        {
            "linear": nn.Linear(2, 2),
            "c1": nn.Conv1d(2, 2, 1),
            "c3": nn.Conv3d(2, 2, 1, bias=False),
            "t2": nn.ConvTranspose2d(2, 2, 1, groups=2),
            "gru": nn.GRU(2, 2, num_layers=2, bidirectional=True),
            "cell": nn.LSTMCell(2, 2),
            "mha": nn.MultiheadAttention(4, 2, kdim=3, vdim=3, add_bias_kv=True),
            "bn": nn.BatchNorm1d(2),
            "ln": nn.LayerNorm(2),
            "gn": nn.GroupNorm(1, 2),
            "emb": nn.Embedding(3, 2),
            "prelu": nn.PReLU(),
        }
    )
    found = names(model)
    assert {n.split(".")[0] for n in found} == {"linear", "c1", "c3", "t2", "gru", "cell", "mha"}
    assert "mha.q_proj_weight" in found
    assert "mha.out_proj.weight" in found
    assert "gru.weight_hh_l1_reverse" in found
    reasons = Network.of(model).left_out
    assert reasons["bn.weight"] == "normalisation layer"
    assert reasons["emb.weight"] == "embedding"
    assert "PReLU" in reasons["prelu.weight"]
    assert "token" in reasons["mha.bias_k"]
    assert set(found) | set(reasons) == {n for n, _ in model.named_parameters()}


def test_order_is_the_models():
    model, _ = make("residual")
    assert names(model) == ["stem.weight", "stem.bias", "body.weight", "head.weight", "head.bias"]


def test_frozen_parameters_stay_out():
    model, _ = make("mlp")
    model.first.weight.requires_grad_(False)
    assert "first.weight" not in names(model)
    assert "frozen" in Network.of(model).left_out["first.weight"]


def test_a_tied_weight_counts_once_and_a_tied_embedding_not_at_all():
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    assert names(model) == ["0.weight"]
    language, _ = make("language")
    assert names(language) == ["body.weight", "body.bias"]
    assert names(language, lambda n, m, p: n == "head.weight") == ["embed.weight"]
    later = nn.Sequential(nn.Linear(4, 7, bias=False), nn.Embedding(7, 4))
    later[1].weight = later[0].weight
    assert names(later) == []


def test_a_predicate_decides_alone():
    model, _ = make("conv")
    assert names(model, lambda n, m, p: p.ndim == 4) == ["conv.weight", "up.weight"]
    assert names(model, lambda n, m, p: isinstance(m, nn.BatchNorm2d)) == [
        "norm.weight",
        "norm.bias",
    ]
    assert "predicate" in Network.of(model, lambda n, m, p: p.ndim == 4).left_out["conv.bias"]


def test_wrappers_do_not_change_names():
    model, _ = make("mlp")
    assert names(torch.compile(model)) == names(model)
    assert names(nn.DataParallel(model)) == names(model)


def test_models_that_cannot_be_pruned_say_why():
    with pytest.raises(snip.InputError, match="normalisation"):
        snip.prune(nn.BatchNorm1d(3), torch.randn(2, 3), sparsity=0.5)
    with pytest.raises(snip.InputError, match="no parameters at all"):
        snip.prune(nn.ReLU(), torch.randn(2, 3), sparsity=0.5)
    with pytest.raises(snip.InputError, match="lazy"):
        snip.prunable_parameters(nn.LazyLinear(3))
    with pytest.raises(snip.KindError, match=r"not a torch\.nn\.Module"):
        snip.prunable_parameters(nn.Linear(2, 2).parameters())


@expects("losses")
def test_weights_that_are_computed_otherwise_stay_out_and_are_named():
    layer = nn.utils.parametrizations.orthogonal(nn.Linear(6, 8))
    batch = torch.randn(5, 6), torch.tensor([0, 1, 2, 1, 0])
    model = nn.Sequential(layer, nn.Linear(8, 3))
    assert list(Network.of(model).left_out.values()) == ["parametrized (Orthogonal)"]
    with pytest.warns(snip.SnipWarning, match="stay dense"):
        masks = snip.prune(model, batch, sparsity=0.9)
    assert "1.weight" in masks
    assert model(batch[0]).isfinite().all()


def test_a_tied_embedding_says_what_it_is_tied_to():
    language, _ = make("language")
    assert Network.of(language).left_out["embed.weight"] == "embedding, tied to 'head.weight'"


def test_a_predicate_that_is_no_function_is_refused():
    with pytest.raises(snip.KindError, match="'fc'"):
        snip.prunable_parameters(nn.Linear(2, 2), "fc")


@pytest.mark.parametrize(
    ("predicate", "message"),
    [
        (lambda name: True, "takes other arguments"),
        (lambda name, module, param, more: True, "takes other arguments"),
        (nn.Linear, "give a function"),
        (lambda name, module, param: param > 0, "returned a tensor"),
    ],
)
def test_a_predicate_that_cannot_answer_is_refused(predicate, message):
    with pytest.raises(snip.KindError, match=message):
        snip.prunable_parameters(nn.Linear(2, 2), predicate)


def test_a_predicate_may_answer_with_whatever_is_true_or_false():
    assert names(nn.Linear(2, 2), lambda n, m, p: re.match("w", n)) == ["weight"]


class Einsum(nn.Module):
    """Half of its weights are a tensor that the forward uses by itself."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Parameter(torch.randn(6, 6))
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(torch.einsum("bi,ij->bj", x, self.mix))


def test_prune_says_how_much_of_a_model_it_leaves_out():
    batch = torch.randn(8, 6), torch.arange(8) % 3
    said = r"63\.16% of the model's parameters .* stay dense: 'mix' \(layer type Einsum"
    with pytest.warns(snip.SnipWarning, match=said):
        snip.prune(Einsum(), batch, sparsity=0.2)
    frozen = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 3))
    frozen[0].requires_grad_(False)
    with pytest.warns(snip.SnipWarning, match=r"stay dense: '0\.weight' \(frozen"):
        snip.prune(frozen, batch, sparsity=0.2)


def test_what_a_predicate_leaves_out_is_not_told():
    batch = torch.randn(8, 6), torch.arange(8) % 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        snip.prune(Einsum(), batch, sparsity=0.2, params=lambda name, m, p: name == "head.weight")
        snip.prune(nn.Linear(6, 3), batch, sparsity=0.2)
