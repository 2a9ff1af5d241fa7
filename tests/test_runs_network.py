"""A user's own network in a run."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import nn

import snip
from snip.common.errors import InputError, KindError
from snip.data import Dataset, load
from snip.runs import RunConfig, prepare, resolve_model, run, scoring_batches
from snip.training import TrainConfig

SHORT = TrainConfig(iterations=100, lr_drops=(60,), eval_every=50)
USER_MODULE = """
import torch
from torch import nn

COUNT = 3
MADE = nn.Linear(784, 10)

def tiny(classes, channels=1, size=28):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, 8), nn.ReLU(),
                         nn.Linear(8, classes))

class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(784, 10)

    def forward(self, images):
        return self.layer(images.flatten(1))

def wrong_classes():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 7))

def wrong_input():
    return nn.Linear(5, 10)

def no_network():
    return "a network"

def failing():
    raise RuntimeError("out of ideas")

def asking(depth):
    return None
"""
ODD_MODULE = """
import torch
from torch import nn

class ReZero(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.inside, self.head = (nn.Linear(784, 9), nn.Linear(9, 9), nn.Linear(9, 10))
        self.scale = nn.Parameter(torch.zeros(1))

    def forward(self, images):
        x = self.first(images.flatten(1))
        return self.head(x + self.scale * torch.relu(self.inside(x)))

def chain():
    widths = (12, 12, 12, 150, 150, 12, 12, 10)
    layers = [nn.Linear(a, b, bias=False) for a, b in zip(widths, widths[1:])]
    return nn.Sequential(nn.AdaptiveAvgPool2d((3, 4)), nn.Flatten(), *layers)
"""


@pytest.fixture(scope="module")
def mnist() -> Dataset:
    return load("mnist")


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "usernets.py").write_text(USER_MODULE)
    (tmp_path / "usernets_odd.py").write_text(ODD_MODULE)
    (tmp_path / "usernets_broken.py").write_text("import no_such_package_at_all\n")
    (tmp_path / "usernets_raising.py").write_text("raise RuntimeError('at import')\n")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("user_module")
def test_user_network_runs_from_the_current_folder(tmp_path: Path) -> None:
    train = dataclasses.replace(SHORT, iterations=30, lr_drops=())
    config = RunConfig("usernets:tiny", 0.5, protocol="redraw", train=train)
    assert config.initializer == config.train_initializer == "own"
    result = run(config, tmp_path / "runs")
    assert result.folder.name.startswith("usernets-tiny_mnist_snip-0.5_redraw")
    assert result.total == 784 * 8 + 8 + 80 + 10
    assert result.sparsity == pytest.approx(0.5, abs=1e-3)


@pytest.mark.usefixtures("user_module")
def test_user_network_is_drawn_by_seed(mnist: Dataset) -> None:
    state = torch.get_rng_state()
    one, same, other = (resolve_model("usernets:tiny", "mnist", seed=s) for s in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(one[1].weight, same[1].weight)
    assert not torch.equal(one[1].weight, other[1].weight)
    assert resolve_model("usernets:tiny", "cifar-10")[1].in_features == 3 * 32 * 32
    assert isinstance(resolve_model("usernets:Whole", "mnist"), nn.Module)
    config = RunConfig("usernets:tiny", 0.5, initializer="vs", train=SHORT)
    _, masks = prepare(config, mnist)
    assert masks is not None
    assert not masks["1.bias"].any()  # zero biases, as every rule of the paper draws them


@pytest.mark.usefixtures("user_module")
@pytest.mark.filterwarnings("ignore::snip.SnipWarning")
@pytest.mark.parametrize(
    ("network", "sparsity", "given"),
    [
        ("ReZero", 0.9, {}),
        ("chain", 0.99, {}),
        ("chain", 0.99, {"floor": 0}),
        ("chain", 0.9, {"biases": "keep"}),
    ],
)
def test_a_run_prunes_as_prune_does(mnist, network, sparsity, given) -> None:
    config = RunConfig(f"usernets_odd:{network}", sparsity, train=SHORT, score_batches=2, **given)
    _, masks = prepare(config, mnist)
    model = resolve_model(config.model, "mnist", seed=config.seed)
    batches = list(scoring_batches(config, mnist))
    assert masks == snip.prune(model, batches, sparsity=sparsity, **given)


@pytest.mark.usefixtures("user_module")
@pytest.mark.filterwarnings("ignore::snip.SnipWarning")
def test_a_floor_of_zero_prunes_without_repair(mnist) -> None:
    repaired, bare = (
        prepare(RunConfig("usernets_odd:chain", 0.99, train=SHORT, **given), mnist)[1]
        for given in ({}, {"floor": 0})
    )
    assert repaired != bare
    assert repaired.kept == bare.kept


@pytest.mark.usefixtures("user_module")
@pytest.mark.parametrize(
    ("spec", "error", "reason"),
    [
        ("usernet_:tiny", InputError, "there is no module 'usernet_'"),
        ("usernets.py:tiny", InputError, "Write 'usernets:tiny'"),
        ("./usernets.py:tiny", InputError, "Write 'usernets:tiny'"),
        ("nets/of/mine.py:tiny", InputError, "Write 'nets.of.mine:tiny'"),
        ("../usernets.py:tiny", InputError, "Write 'usernets:tiny' in the folder \\.\\."),
        ("usernets.sub:tiny", InputError, "no module"),
        ("usernets:MADE", KindError, "a network already, a Linear.*and give usernets:build"),
        ("usernets:tinny", InputError, "did you mean 'tiny'"),
        ("usernets:", InputError, "Known: Whole, asking"),
        (":tiny", InputError, "package.module:function"),
        ("usernets:COUNT", KindError, "is a int, not a function"),
        ("usernets:no_network", KindError, "returned a str"),
        ("usernets:failing", InputError, "out of ideas"),
        ("usernets:asking", InputError, "depth.*others need a default"),
        ("usernets:wrong_classes", InputError, r"\(2, 7\) for two images"),
        ("usernets:wrong_input", InputError, "does not take images of shape"),
        ("usernets_broken:tiny", InputError, "Install it first"),
        ("usernets_raising:tiny", InputError, "at import"),
    ],
)
def test_user_mistakes_have_sentences(spec: str, error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        resolve_model(spec, "mnist")
