"""Training on the sparse engine: the same result, resumed to the same bits."""

import json

import pytest
import torch

import snip
from snip.data import load
from snip.engine.choice import choose
from snip.engine.kernels.library import available
from snip.models import build
from snip.network.parameters import Accelerated
from snip.runs import RunConfig, prepare, run
from snip.training import TrainConfig, train

pytestmark = pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set")
CONFIG = TrainConfig(iterations=60, lr_drops=(), eval_every=20)


@pytest.fixture(scope="module")
def mnist():
    return load("mnist").subset(6000, 1000)


@pytest.fixture(autouse=True)
def _own_memory(tmp_path, monkeypatch):
    monkeypatch.setenv("SNIP_CACHE", str(tmp_path / "cache"))


def trained(mnist, engine, **settings):
    model, masks = prepare(RunConfig("lenet-300-100", 0.95), mnist)
    result = train(model, mnist, CONFIG, masks=masks, engine=engine, progress=False, **settings)
    masks.check(model)
    return model, result


def test_sparse_training_reaches_the_dense_result(mnist):
    _, dense = trained(mnist, "dense")
    model, sparse = trained(mnist, "sparse")
    assert sparse.test_error == pytest.approx(dense.test_error, abs=0.01)
    assert sparse.final.train_loss == pytest.approx(dense.final.train_loss, rel=1e-3)
    assert sparse.final.sparsity == dense.final.sparsity
    for name, value in model.state_dict().items():
        assert torch.equal(value, sparse.weights[name]) or sparse.selected is not sparse.final


def test_the_same_run_twice_gives_the_same_bits(mnist):
    one, two = (trained(mnist, "sparse")[0].state_dict() for _ in range(2))
    assert all(torch.equal(value, two[name]) for name, value in one.items())


class StoppedError(Exception):
    """Ends a training in its middle."""


def test_a_sparse_run_resumes_to_the_same_bits(mnist, tmp_path):
    whole, _ = trained(mnist, "auto", folder=tmp_path / "whole")

    def stop(metrics):
        if metrics.iteration == 40:
            raise StoppedError

    folder = tmp_path / "killed"
    (folder).mkdir()
    (folder / "engine.json").write_text((tmp_path / "whole" / "engine.json").read_text())
    with pytest.raises(StoppedError):
        trained(mnist, "auto", folder=folder, checkpoint_seconds=0, on_metrics=stop)
    again, _ = trained(mnist, "auto", folder=folder)
    assert all(torch.equal(v, again.state_dict()[k]) for k, v in whole.state_dict().items())


def test_auto_measures_and_says_so(mnist):
    model, masks = prepare(RunConfig("lenet-300-100", 0.98), mnist)
    images = torch.randn(100, 1, 28, 28), torch.randint(0, 10, (100,))
    network, choice = choose(model, images, "auto")
    assert choice.engine in ("dense", "sparse")
    assert isinstance(network, Accelerated) == (choice.engine == "sparse")
    assert set(choice.step_seconds) == {"dense", "sparse"}
    masks.check(model)
    assert all(p.grad is None for p in model.parameters())


def test_an_unpruned_model_trains_dense_and_an_unknown_engine_is_refused():
    model, batch = (
        build("lenet-300-100", seed=0),
        (torch.randn(4, 1, 28, 28), torch.zeros(4).long()),
    )
    assert choose(model, batch, "sparse")[0] is model
    with pytest.raises(snip.InputError, match="'sparse'"):
        choose(model, batch, "sparce")


def test_a_whole_run_on_the_sparse_engine(tmp_path):
    config = RunConfig("lenet-300-100", 0.95, engine="sparse", train=CONFIG)
    result = run(config, tmp_path / "runs", progress=False)
    assert json.loads((result.folder / "engine.json").read_text())["engine"] == "sparse"
    assert result.test_error < 0.5
