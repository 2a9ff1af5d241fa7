"""Whole runs on real MNIST: folders, protocols, resuming, and a user's own network."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import snip
from snip.data import Dataset, load
from snip.errors import FileError, InputError, KindError
from snip.models import build
from snip.runs import RunConfig, RunResult, prepare, resolve_model, run, scoring_batches, seeds_of
from snip.training import Metrics, TrainConfig, evaluate, paper_schedule

SHORT = TrainConfig(iterations=100, lr_drops=(60,), eval_every=50)
CONFIG = RunConfig("lenet-300-100", 0.95, train=SHORT)
FILES = [
    "checkpoint.pt", "config.json", "masks.safetensors", "metrics.jsonl", "model.safetensors",
    "report.json", "result.json", "selected.safetensors",
]  # fmt: skip

USER_MODULE = """
import torch
from torch import nn

COUNT = 3

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


@pytest.fixture(scope="module")
def mnist() -> Dataset:
    return load("mnist")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    torch.set_num_threads(1)  # as in every test; a module's fixtures come before that
    return run(CONFIG, tmp_path_factory.mktemp("runs"))


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "usernets.py").write_text(USER_MODULE)
    (tmp_path / "usernets_broken.py").write_text("import no_such_package_at_all\n")
    (tmp_path / "usernets_raising.py").write_text("raise RuntimeError('at import')\n")
    monkeypatch.chdir(tmp_path)


class StoppedError(Exception):
    """Stands for a process that ends."""


# ---- one run and its folder


def test_run_leaves_everything_in_its_folder(finished: RunResult) -> None:
    names = sorted(p.name for p in finished.folder.iterdir() if not p.name.startswith("."))
    assert names == FILES
    assert finished.folder.name.startswith("lenet-300-100_mnist_snip-0.95_100it_seed0_")
    data = json.loads((finished.folder / "result.json").read_text())
    assert data["sparsity_asked"] == 0.95
    assert data["kept"] == 13_330 or data["kept"] == 13_331
    assert data["total"] == 266_610
    assert data["protocol"] == "train-scored"
    assert data["machine"].keys() == {"cpu", "cores"}
    assert data["versions"].keys() == {"snip", "torch", "python"}
    assert data["test_error"] < 0.25
    assert data["best_test_error"] <= data["test_error"]
    assert json.loads((finished.folder / "config.json").read_text()) == CONFIG.to_dict()
    assert [line.iteration for line in finished.history()] == [50, 100]
    report = json.loads((finished.folder / "report.json").read_text())
    assert report["kept"] == data["kept"]


def test_saved_weights_load_into_a_plain_network(finished: RunResult, mnist: Dataset) -> None:
    masks = snip.Masks.load(finished.folder / "masks.safetensors")
    for name, error in [
        ("model.safetensors", finished.final_test_error),
        ("selected.safetensors", finished.test_error),
    ]:
        model = build("lenet-300-100", seed=9)
        model.load_state_dict(load_file(finished.folder / name))
        masks.check(model)
        assert evaluate(model, mnist.evaluation_batches(500)).error == pytest.approx(error)


def test_finished_run_is_returned_at_once(finished: RunResult) -> None:
    def never(metrics: Metrics) -> None:
        raise StoppedError

    again = run(CONFIG, finished.folder.parent, on_metrics=never)
    assert again == finished


def test_masks_say_where_they_come_from(finished: RunResult) -> None:
    provenance = snip.Masks.load(finished.folder / "masks.safetensors").provenance
    assert provenance["seeds"] == finished.seeds == seeds_of(CONFIG)
    assert provenance["protocol"] == "train-scored"
    assert (provenance["batches"], provenance["samples"]) == (1, 100)


def test_stopped_run_resumes_to_the_same_bits(finished: RunResult, tmp_path: Path) -> None:
    def stop(metrics: Metrics) -> None:
        raise StoppedError

    with pytest.raises(StoppedError):
        run(CONFIG, tmp_path, checkpoint_seconds=0.05, on_metrics=stop)
    result = run(CONFIG, tmp_path)
    assert [m.repeatable() for m in result.history()] == [
        m.repeatable() for m in finished.history()
    ]
    for name in ("model.safetensors", "selected.safetensors", "masks.safetensors"):
        ours, theirs = (load_file(place / name) for place in (result.folder, finished.folder))
        assert all(torch.equal(value, theirs[key]) for key, value in ours.items())


def test_killed_between_training_and_result(finished: RunResult, tmp_path: Path) -> None:
    def never(metrics: Metrics) -> None:
        raise StoppedError

    folder = tmp_path / "run"
    shutil.copytree(finished.folder, folder)
    for name in ("result.json", "model.safetensors", "selected.safetensors"):
        (folder / name).unlink()
    again = run(CONFIG, folder=folder, on_metrics=never)  # trains not a single step
    assert again.test_error == finished.test_error
    ours, theirs = (load_file(place / "model.safetensors") for place in (folder, finished.folder))
    assert all(torch.equal(value, theirs[key]) for key, value in ours.items())


def test_dense_reference_has_no_masks(tmp_path: Path) -> None:
    train = dataclasses.replace(SHORT, iterations=20, lr_drops=())
    result = run(RunConfig("lenet-300-100", 0, train=train), tmp_path)
    assert "_dense_" in result.folder.name
    assert not (result.folder / "masks.safetensors").exists()
    assert (result.sparsity, result.kept, result.total) == (0.0, 266_610, 266_610)


def test_another_configuration_in_the_folder_is_refused(finished: RunResult) -> None:
    other = dataclasses.replace(CONFIG, sparsity=0.9, seed=4)
    before = sorted(p.stat().st_mtime_ns for p in finished.folder.iterdir())
    for resume in (True, False):
        with pytest.raises(FileError, match=r"another configuration \(seed .*sparsity 0\.95 there"):
            run(other, folder=finished.folder, resume=resume)
    assert sorted(p.stat().st_mtime_ns for p in finished.folder.iterdir()) == before


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(FileError, match="is no run folder"):
        run(CONFIG, folder=tmp_path)
    with pytest.raises(FileError, match="is a file"):
        run(CONFIG, folder=tmp_path / "thesis.tex")
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"model": "lenet-300-100", "colour": 1}'])
def test_damaged_configuration_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(FileError, match=r"config\.json is damaged"):
        run(CONFIG, folder=tmp_path)


def test_damaged_result_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG.to_dict()))
    (tmp_path / "result.json").write_text('{"config": {}}')
    with pytest.raises(FileError, match=r"result\.json is damaged"):
        run(CONFIG, folder=tmp_path)


def test_refused_input_leaves_no_folder(tmp_path: Path) -> None:
    too_much = dataclasses.replace(CONFIG, score_batch_size=60_000)
    with pytest.raises(InputError, match=r"60,000 images, but mnist has 54,000"):
        run(too_much, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_resume_false_starts_over(tmp_path: Path) -> None:
    train = dataclasses.replace(SHORT, iterations=10, lr_drops=())
    config = RunConfig("lenet-300-100", 0.9, train=train)
    first = run(config, tmp_path)
    (first.folder / "notes.txt").write_text("mine")
    seen: list[Metrics] = []
    again = run(config, tmp_path, resume=False, on_metrics=seen.append)
    assert len(seen) == 1
    assert again.test_error == first.test_error
    assert (first.folder / "notes.txt").read_text() == "mine"


# ---- protocols, seeds, scoring data


def test_protocols_share_masks_and_differ_in_the_trained_draw(mnist: Dataset) -> None:
    scored_model, scored_masks = prepare(CONFIG, mnist)
    redrawn_model, redrawn_masks = prepare(dataclasses.replace(CONFIG, protocol="redraw"), mnist)
    assert scored_masks == redrawn_masks
    masks = scored_masks
    assert masks is not None
    scored, redrawn = scored_model.state_dict(), redrawn_model.state_dict()
    for name in ("fc1.weight", "fc2.weight", "fc3.weight"):
        kept = masks[name]
        assert not torch.equal(scored[name][kept], redrawn[name][kept])
        assert not redrawn[name][~kept].any()
    draw = build("lenet-300-100", seed=CONFIG.seed).state_dict()
    assert torch.equal(scored["fc1.weight"], draw["fc1.weight"] * masks["fc1.weight"])


def test_initializers_of_scored_and_trained_weights(mnist: Dataset) -> None:
    config = dataclasses.replace(
        CONFIG, protocol="redraw", initializer="rn", train_initializer="vs-x"
    )
    model, masks = prepare(config, mnist)
    assert masks is not None
    kept = model.get_parameter("fc1.weight")[masks["fc1.weight"]]
    assert float(kept.detach().std()) < 0.1  # vs-x, where rn has 1
    assert masks != prepare(dataclasses.replace(config, initializer="vs"), mnist)[1]
    with pytest.raises(InputError, match="use 'redraw'"):
        dataclasses.replace(CONFIG, train_initializer="vs-x")


def test_seeds_are_documented_and_distinct() -> None:
    seeds = seeds_of(dataclasses.replace(CONFIG, protocol="redraw", seed=3))
    assert seeds["run"] == seeds["scored_draw"] == seeds["training"] == 3
    assert len({seeds["scored_draw"], seeds["trained_draw"], seeds["scoring_batch"]}) == 3
    assert seeds_of(CONFIG)["trained_draw"] == seeds_of(CONFIG)["scored_draw"]


def test_scoring_batch_is_training_data_chosen_by_seed(mnist: Dataset) -> None:
    def images(config: RunConfig) -> torch.Tensor:
        return torch.cat([x for x, _ in scoring_batches(config, mnist)])

    config = dataclasses.replace(CONFIG, score_batch_size=20, score_batches=3)
    first = images(config)
    assert len(first) == 60
    assert torch.equal(first, images(config))
    assert not torch.equal(first, images(dataclasses.replace(config, seed=1)))
    train_part, _ = mnist.split_validation(0.1)
    known = {x.numpy().tobytes() for x in train_part.images}
    raw = (first * mnist.std.view(-1, 1, 1) + mnist.mean.view(-1, 1, 1)) * 255
    assert all(x.round().to(torch.uint8).numpy().tobytes() in known for x in raw)


# ---- the configuration and its name


def test_name_depends_on_what_differs_from_the_default() -> None:
    paper = RunConfig("lenet-300-100", 0.95)
    assert paper.dataset == "mnist"
    assert paper.training == paper_schedule("lenet-300-100", "mnist")
    same = RunConfig("lenet-300-100", 0.95, dataset="mnist", train=TrainConfig(), initializer="vs")
    assert same == paper
    assert same.folder_name == paper.folder_name
    # Pinned: a field that is added later must not rename the runs of today.
    assert paper.identity().keys() == {
        "dataset", "initializer", "model", "score_batch_size", "sparsity", "train_initializer"
    }  # fmt: skip
    assert paper.folder_name == "lenet-300-100_mnist_snip-0.95_75000it_seed0_ce950196"
    names = {
        dataclasses.replace(paper, **change).folder_name
        for change in (
            {}, {"sparsity": 0.9}, {"seed": 1}, {"protocol": "redraw"}, {"scope": "erk"},
            {"reduction": "ema"}, {"score_batches": 2}, {"batch_norm": "train"}, {"floor": 1},
            {"train": TrainConfig(lr=0.05)}, {"dataset": "fashion-mnist"},
        )
    }  # fmt: skip
    assert len(names) == 11


def test_dense_reference_is_one_run_whatever_the_scoring() -> None:
    dense = RunConfig("lenet-300-100", 0.0)
    assert dataclasses.replace(dense, scope="erk", score_batches=7).folder_name == dense.folder_name
    assert dataclasses.replace(dense, seed=1).folder_name != dense.folder_name


def test_configuration_survives_json() -> None:
    config = RunConfig(
        "vgg-like", 0.97, protocol="redraw", train_initializer="vs-h", seed=5,
        train=TrainConfig(batch_size=128, lr=1, lr_drops=(3,)),
    )  # fmt: skip
    assert config.dataset == "cifar-10"
    again = RunConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config
    assert again.folder_name == config.folder_name
    assert again.training.seed == 5


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": "lenet-300-10"}, "did you mean 'lenet-300-100'"),
        ({"model": ""}, "package.module:function"),
        ({"dataset": "mnits"}, "did you mean 'mnist'"),
        ({"sparsity": 95}, "write 0.95"),
        ({"sparsity": 1.0}, "sparsity"),
        ({"method": "snap"}, "did you mean 'snip'"),
        ({"protocol": "redrawn"}, "did you mean 'redraw'"),
        ({"initializer": "xavier"}, "unknown initializer"),
        ({"initializer": "own", "train_initializer": "own"}, "unknown train initializer"),
        ({"scope": "globl"}, "did you mean 'global'"),
        ({"reduction": "sum"}, "unknown reduction"),
        ({"batch_norm": "frozen"}, "unknown batch norm"),
        ({"score_batches": 0}, "at least 1"),
        ({"score_batch_size": -1}, "at least 1"),
        ({"floor": -1}, "floor"),
        ({"seed": -1}, "seed"),
        ({"train": TrainConfig(seed=7)}, "a run has one seed"),
        ({"train": {"lr": 0.1}}, "give a TrainConfig"),
    ],
)
def test_bad_configurations_are_refused(change: dict[str, object], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        dataclasses.replace(CONFIG, **change)


def test_network_for_another_data_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not defined for the data set 'mnist'"):
        run(RunConfig("vgg-d", 0.95, dataset="mnist", train=SHORT), tmp_path)


# ---- a user's own network


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
@pytest.mark.parametrize(
    ("spec", "error", "reason"),
    [
        ("usernet_:tiny", InputError, "there is no module 'usernet_'"),
        ("usernets.py:tiny", InputError, "Write 'usernets:tiny'"),
        ("usernets.sub:tiny", InputError, "no module"),
        ("usernets:tinny", InputError, "did you mean 'tiny'"),
        ("usernets:", InputError, "Known: Whole, asking"),
        (":tiny", InputError, "package.module:function"),
        ("usernets:COUNT", KindError, "is a int, not a function"),
        ("usernets:no_network", KindError, "returned a str"),
        ("usernets:failing", InputError, "out of ideas"),
        ("usernets:asking", InputError, "depth"),
        ("usernets:wrong_classes", InputError, r"\(2, 7\) for two images"),
        ("usernets:wrong_input", InputError, "does not take images of shape"),
        ("usernets_broken:tiny", InputError, "Install it first"),
        ("usernets_raising:tiny", InputError, "at import"),
    ],
)
def test_user_mistakes_have_sentences(spec: str, error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        resolve_model(spec, "mnist")
