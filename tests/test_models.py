"""The paper's networks: counts, shapes, and how they are built."""

import copy
import dataclasses
import pickle

import pytest
import torch
from model_parts import make, some_images
from torch import nn

from snip.common.errors import InputError
from snip.models import IMAGES, MODELS, Images, build
from snip.network.network import prunable_parameters
from snip.selection.budgets import kept_count

PAIRS = [(name, dataset) for name, spec in MODELS.items() for dataset in spec.datasets]

# m, and what is kept at each sparsity of the paper, which prints these numbers in thousands.
PAPER = {
    "lenet-300-100": (266_610, {0.95: 13_331, 0.98: 5_332}),
    "lenet-5-caffe": (431_080, {0.98: 8_622, 0.99: 4_311}),
    "alexnet-s": (5_070_218, {0.9: 507_022}),
    "alexnet-b": (8_490_378, {0.9: 849_038}),
    "vgg-c": (10_526_538, {0.95: 526_327}),
    "vgg-d": (15_245_130, {0.95: 762_257}),
    "vgg-like": (14_982_474, {0.97: 449_474}),
    "wrn-16-8": (10_954_170, {0.95: 547_709}),
    # The paper prints 856k and 858k for these two: batch norm is counted in m there.
    "wrn-16-10": (17_107_642, {0.95: 855_382}),
    "wrn-22-8": (17_147_322, {0.95: 857_366}),
    "lstm-s": (136_586, {0.95: 6_829}),
    "lstm-b": (535_306, {0.95: 26_765}),
    "gru-s": (103_690, {0.95: 5_185}),
    "gru-b": (403_978, {0.95: 20_199}),
}
# Networks that are not in the paper.
OTHERS = (
    "resnet-20", "lstm-s-forget", "lstm-b-forget", "gru-s-open", "gru-b-open", "lenet-5-relu"
)  # fmt: skip


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in prunable_parameters(model).values())


def test_the_table_has_the_papers_counts_and_sparsities() -> None:
    assert list(MODELS) == [*PAPER, *OTHERS]
    assert not any(MODELS[name].sparsities for name in OTHERS)
    for name, (total, kept) in PAPER.items():
        spec = MODELS[name]
        dataset = spec.datasets[0]
        assert spec.name == name
        assert spec.totals[dataset] == total
        assert {s: kept_count(total, s) for s in spec.sparsities[dataset]} == kept
    assert MODELS["vgg-like"].sparsities["tiny-imagenet"] == (0.95,)
    with pytest.raises(dataclasses.FrozenInstanceError):
        MODELS["vgg-c"].name = "other"  # type: ignore[misc]


def test_batch_norm_explains_the_papers_two_wider_counts() -> None:
    for name, norms, printed in (("wrn-16-10", 8_992, 856), ("wrn-22-8", 10_784, 858)):
        model = make(name, "cifar-10")
        everything = sum(p.numel() for p in model.parameters())
        assert everything - count(model) == norms
        assert round(everything * 0.05 / 1000) == printed


@pytest.mark.parametrize(("name", "dataset"), PAIRS)
def test_counts_shapes_and_tracing(name: str, dataset: str) -> None:
    model = make(name, dataset)
    assert count(model) == MODELS[name].totals[dataset]
    images = some_images(dataset)
    logits = model(images)  # training mode
    assert logits.shape == (2, IMAGES[dataset].classes)
    logits.sum().backward()
    assert all(p.grad is not None for p in prunable_parameters(model).values())
    model.eval()
    with torch.no_grad():
        alone, both = model(images[:1]), model(images)
        traced = torch.fx.symbolic_trace(model)(images)
    torch.testing.assert_close(alone, both[:1], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(traced, both)


def test_data_sets_of_each_network() -> None:
    for name, spec in MODELS.items():
        if name.startswith("lenet"):
            assert spec.datasets == ("mnist", "fashion-mnist", "kmnist")
        elif name.startswith(("lstm", "gru")):
            assert spec.datasets == ("mnist",)
        else:
            assert spec.datasets == ("cifar-10", "tiny-imagenet")


@pytest.mark.parametrize("name", ["lenet-300-100", "lenet-5-caffe", "alexnet-s", "gru-s"])
def test_compiles_to_the_same_numbers(name: str) -> None:
    dataset = MODELS[name].datasets[0]
    model = build(name, seed=0).eval()
    images = some_images(dataset)
    # Dynamo runs recurrent layers eagerly, between two graphs; everything else is one graph.
    whole = not name.startswith(("lstm", "gru"))
    compiled = torch.compile(model, backend="aot_eager", fullgraph=whole)
    torch.testing.assert_close(compiled(images), model(images))


@pytest.mark.parametrize("name", ["lenet-5-caffe", "lstm-s", "gru-s"])
def test_copies_and_pickles(name: str) -> None:
    model = build(name, seed=0)
    images = some_images("mnist")
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(images), model(images))
        assert count(twin) == count(model)


def test_build_repeats_by_seed_and_leaves_the_global_generator_alone() -> None:
    state = torch.get_rng_state()
    first, again, other = (build("lenet-5-caffe", seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first.fc1.weight, again.fc1.weight)
    assert not torch.equal(first.fc1.weight, other.fc1.weight)


def test_build_without_a_seed_follows_the_global_generator() -> None:
    torch.manual_seed(3)
    first = build("lenet-300-100")
    torch.manual_seed(3)
    assert torch.equal(build("lenet-300-100").fc1.weight, first.fc1.weight)
    assert not torch.equal(build("lenet-300-100").fc1.weight, first.fc1.weight)


def test_build_initialises_by_the_authors_rule() -> None:
    model = build("lenet-300-100", seed=0)
    assert model.fc1.weight.std().item() == pytest.approx(784**-0.5, rel=0.01)
    assert all(layer.bias.eq(0).all() for layer in (model.fc1, model.fc2, model.fc3))


def test_build_takes_the_data_set() -> None:
    assert build("lenet-300-100", dataset="fashion-mnist", seed=0).fc3.out_features == 10
    assert IMAGES["tiny-imagenet"] == Images(channels=3, size=64, classes=200)


@pytest.mark.parametrize(
    ("name", "dataset", "message"),
    [
        ("vgg_c", None, "did you mean 'vgg-c'"),
        ("LeNet-300-100", None, "did you mean 'lenet-300-100'"),
        ("alexnet-s", "mnist", "only for cifar-10 and tiny-imagenet"),
        ("gru-s", "fashion-mnist", "only for mnist"),
        ("vgg-c", "cifar10", "not defined for the data set 'cifar10'"),
    ],
)
def test_bad_names(name: str, dataset: str | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(name, dataset=dataset)
