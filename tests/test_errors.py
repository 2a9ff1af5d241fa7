"""Unknown names come with the one that was probably meant."""

import pytest
import torch
from networks import chain
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

import snip
from snip.common.errors import FileError, nearest


@pytest.mark.parametrize(
    ("name", "meant"),
    [("lenet5", "lenet-5-caffe"), ("LeNet_300", "lenet-300-100"), ("vgg like", "vgg-like")],
)
def test_the_nearest_name_is_suggested(name, meant):
    known = ["alexnet-s", "lenet-300-100", "lenet-5-caffe", "vgg-c", "vgg-like"]
    assert f"did you mean '{meant}'?" in str(nearest("model", name, known))


def test_a_name_like_no_other_gets_the_list_alone():
    assert str(nearest("model", "zzz", ["a", "b"])) == "unknown model 'zzz'. Known: a, b."


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("lion", ["sgd", "adam", "adamw"]),
        ("imagenet", ["mnist", "cifar-10", "kmnist"]),
        ("transformer", ["alexnet-s", "lenet-5-caffe", "lstm-s", "vgg-like"]),
        ("best", ["global", "layer", "uniform", "erk"]),
        ("he", ["vs", "rn", "tn"]),
    ],
)
def test_another_name_is_no_slip(name, known):
    assert "did you mean" not in str(nearest("name", name, known))


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("adm", ["sgd", "adam", "adamw"], "adam"),
        ("mnits", ["mnist", "cifar-10", "kmnist"], "mnist"),
        ("vgg-e", ["alexnet-s", "vgg-c", "vgg-like"], "vgg-c"),
        ("gloabl", ["global", "layer", "uniform", "erk"], "global"),
    ],
)
def test_a_slip_is_recognised(name, known, meant):
    assert f"did you mean {meant!r}?" in str(nearest("name", name, known))


def test_file_errors_print_their_sentence():
    assert str(FileError("cannot write x")) == "cannot write x"


def _lost_path():
    model, batch = chain()
    snip.prune(model, batch, sparsity=0.99)


def _silent_layer():
    model = nn.ModuleDict({"used": nn.Linear(2, 2), "unused": nn.Linear(2, 2)})
    batch = torch.randn(4, 2), torch.arange(4) % 2
    loss = lambda m, b: nn.functional.cross_entropy(m["used"](b[0]), b[1])  # noqa: E731
    snip.prune(model, batch, sparsity=0.5, loss_fn=loss)


def _sleeping_part():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    nn.init.zeros_(model[1].weight)
    snip.prune(model, (torch.randn(4, 3), torch.arange(4) % 2), sparsity=0.5)


def _unused_sparsity_in_prune():
    model = nn.Sequential(spectral_norm(nn.Linear(9, 9, bias=False)))
    batch = torch.randn(4, 9), torch.arange(4)
    snip.prune(model, batch, sparsity=0.9, scope={"0": 0.5})


def _unused_sparsity_in_select():
    snip.select({"a.weight": torch.rand(9, 9)}, sparsity=0.9, scope={"a": 0.5})


def _computed_weight():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    nn.utils.parametrize.register_parametrization(model[0], "weight", nn.Tanh())
    snip.prune(model, (torch.randn(4, 3), torch.arange(4) % 2), sparsity=0.5)


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (_lost_path, "no path leads"),
        (_silent_layer, "does not depend on"),
        (_sleeping_part, "parts that start at zero"),
        (_unused_sparsity_in_prune, "has no effect"),
        (_unused_sparsity_in_select, "has no effect"),
        (_computed_weight, "stay dense"),
    ],
)
def test_a_warning_points_at_the_line_that_called(work, said):
    torch.manual_seed(0)
    with pytest.warns(snip.SnipWarning, match=said) as caught:
        work()
    assert {warning.filename for warning in caught} == {__file__}
