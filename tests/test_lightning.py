"""The callback for Lightning, with Lightning's own Trainer."""

import logging
import warnings
from pathlib import Path

import pytest
import torch
import torchvision_names  # noqa: F401
from needed import needed
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import snip
from snip.anatomy.accelerated import Accelerated
from snip.engine.kernels.library import available

pl = needed("lightning.pytorch")
from snip.integrations.lightning import Snip  # noqa: E402

needs_kernels = pytest.mark.skipif(not available(), reason="no native kernels on this machine")


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    for name in ("lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setattr(logging.getLogger(name), "level", logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Lit(pl.LightningModule):
    """Counts the batches that it was trained on, and keeps the first numbers of each."""

    def __init__(self, optimizer="AdamW", fail_at=None):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))
        self.optimizer, self.fail_at, self.seen = optimizer, fail_at, []
        self.kinds, self.scored = set(), None

    def training_step(self, batch, batch_idx):
        images, labels = batch
        self.scored = self.scored or (images, labels)
        loss = cross_entropy(self.net(images), labels)
        self.log("loss", loss)
        return loss

    def on_train_batch_start(self, batch, batch_idx):
        self.seen.append(batch[0].flatten()[:3].tolist())
        self.kinds.add(isinstance(self.net, Accelerated))
        if len(self.seen) == self.fail_at:
            raise RuntimeError("out of luck")

    def configure_optimizers(self):
        return getattr(torch.optim, self.optimizer)(self.parameters(), lr=0.01)


def loader(shuffle=True):
    torch.manual_seed(7)
    images, labels = torch.randn(40, 1, 8, 8), torch.arange(40) % 4
    return DataLoader(TensorDataset(images, labels), batch_size=8, shuffle=shuffle)


def trainer(folder: Path, *callbacks, steps=6, library=pl):
    return library.Trainer(
        max_steps=steps, callbacks=list(callbacks), default_root_dir=folder, accelerator="cpu",
        logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False,
    )  # fmt: skip


def fitted(folder, callback, module=None, steps=6, shuffle=True, **more):
    torch.manual_seed(0)
    module = Lit() if module is None else module
    data = loader(shuffle)
    torch.manual_seed(1)
    work = trainer(folder, *([callback] if callback else []), steps=steps)
    work.fit(module, data, **more)
    return module, work


class Saving(pl.Callback):
    """Saves a checkpoint in the middle of training."""

    def __init__(self, path, at):
        self.path, self.at = path, at

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.at:
            trainer.save_checkpoint(self.path)


def test_it_prunes_on_the_first_batch_and_the_zeros_stay(tmp_path):
    callback = Snip(sparsity=0.8)
    module, _ = fitted(tmp_path, callback)
    assert len(module.scored[0]) == 8
    torch.manual_seed(0)
    assert snip.prune(Lit().net, module.scored, sparsity=0.8) == callback.masks  # by hand
    assert callback.masks == snip.held_masks(module.net)
    callback.masks.check(module.net)
    assert callback.masks.kept == round(0.2 * callback.masks.total)
    plain, _ = fitted(tmp_path, None)  # the same batches as without it
    assert module.seen == plain.seen
    assert not any(torch.equal(module.net[i].weight, plain.net[i].weight) for i in (1, 3))


def test_options_of_prune_parts_and_a_loss_of_ones_own(tmp_path):
    losses = []

    def loss_fn(network, batch):
        losses.append(network)
        return cross_entropy(network(batch[0]), batch[1])

    callback = Snip(sparsity=0.5, module="net", biases="keep", scope="layer", loss_fn=loss_fn)
    module, _ = fitted(tmp_path, callback)
    assert losses
    assert all(network is module.net for network in losses)
    assert list(callback.masks) == ["1.weight", "3.weight"]
    assert callback.masks.provenance.scope == "layer"


def test_resumed_from_a_checkpoint_it_is_not_pruned_again(tmp_path):
    torch.manual_seed(0)
    whole, first, data = Lit(), Snip(sparsity=0.8), loader(shuffle=False)
    trainer(tmp_path, first, Saving(tmp_path / "half.ckpt", 5), steps=10).fit(whole, data)
    torch.load(tmp_path / "half.ckpt", weights_only=True)  # nothing but tensors and plain values
    second = Snip(sparsity=0.1)  # which it would be pruned to if it were pruned again
    again, _ = fitted(tmp_path, second, steps=10, shuffle=False, ckpt_path=tmp_path / "half.ckpt")
    assert second.masks == first.masks
    assert second.masks.provenance == first.masks.provenance
    second.masks.check(again.net)
    assert again.seen == whole.seen[5:]
    for name, value in whole.state_dict().items():  # to the bit
        assert torch.equal(again.state_dict()[name], value)
    held, _ = fitted(tmp_path, Snip(sparsity=0.1), module=again)  # neither if it is trained on
    assert snip.held_masks(held.net) == first.masks


@needs_kernels
@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
def test_accelerated_it_is_the_same_training_and_leaves_an_ordinary_model(
    tmp_path, optimizer, monkeypatch
):
    monkeypatch.setattr("snip.engine.accelerate.is_slower", lambda _: False)
    dense, dense_work = fitted(tmp_path, Snip(sparsity=0.8), Lit(optimizer), steps=4)
    callback = Snip(sparsity=0.8, accelerate=True)
    torch.manual_seed(0)
    fast, work = fitted(tmp_path, callback, Lit(optimizer), steps=4)
    assert (dense.kinds, fast.kinds) == ({False}, {True})
    assert type(fast.net) is nn.Sequential
    assert type(fast.net[1]) is nn.Linear
    callback.masks.check(fast.net)
    assert callback.masks == snip.held_masks(fast.net)
    work.save_checkpoint(tmp_path / "fast.ckpt")
    dense_work.save_checkpoint(tmp_path / "dense.ckpt")
    states = [torch.load(tmp_path / f"{n}.ckpt", weights_only=True) for n in ("fast", "dense")]
    assert shapes(states[0]) == shapes(states[1])


def shapes(checkpoint):
    parts = [checkpoint["state_dict"], *checkpoint["optimizer_states"][0]["state"].values()]
    return [{k: getattr(v, "shape", None) for k, v in part.items()} for part in parts]


@needs_kernels
def test_a_checkpoint_of_an_accelerated_training_is_an_ordinary_one(tmp_path, monkeypatch):
    monkeypatch.setattr("snip.engine.accelerate.is_slower", lambda _: False)
    torch.manual_seed(0)
    module, first, data = Lit(), Snip(sparsity=0.8, accelerate=True), loader(shuffle=False)
    torch.manual_seed(1)
    trainer(tmp_path, first, Saving(tmp_path / "middle.ckpt", 5), steps=10).fit(module, data)
    saved = torch.load(tmp_path / "middle.ckpt", weights_only=True)
    state = saved["optimizer_states"][0]["state"]
    assert state[0]["exp_avg"].shape == (32, 64)
    assert not state[0]["exp_avg"][~first.masks["1.weight"]].any()
    plain = Lit()
    plain.load_state_dict(saved["state_dict"])  # without this library
    first.masks.check(plain.net)
    for fast in (True, False):  # it goes on sparse or dense
        second = Snip(sparsity=0.8, accelerate=fast)
        again, _ = fitted(
            tmp_path, second, steps=10, shuffle=False, ckpt_path=tmp_path / "middle.ckpt"
        )
        assert again.kinds == {fast}
        assert second.masks == first.masks
        torch.testing.assert_close(again.net[1].weight, module.net[1].weight, rtol=1e-3, atol=1e-4)


@needs_kernels
def test_an_exception_leaves_an_ordinary_model_too(tmp_path, monkeypatch):
    monkeypatch.setattr("snip.engine.accelerate.is_slower", lambda _: False)
    module = Lit(fail_at=3)
    with pytest.raises(RuntimeError, match="out of luck"):
        fitted(tmp_path, Snip(sparsity=0.8, accelerate=True), module)
    assert module.kinds == {True}
    assert type(module.net) is nn.Sequential
    snip.held_masks(module.net).check(module.net)


class Flat(Lit):
    """With layers of its own, a loss in a dict, and a batch of two loaders."""

    def __init__(self):
        super().__init__()
        del self.net
        self.a, self.b, self.net = nn.Linear(64, 32), nn.Linear(32, 4), None

    def training_step(self, batch):
        images, labels = batch["x"]
        return {"loss": cross_entropy(self.b(self.a(images.flatten(1)).relu()), labels)}

    def on_train_batch_start(self, batch, batch_idx):
        assert set(batch) == {"x", "y"}


def test_a_module_that_is_the_network_itself_runs_dense_with_a_sentence(tmp_path):
    module, callback = Flat(), Snip(sparsity=0.7, accelerate=True)
    work = trainer(tmp_path, callback)
    with pytest.warns(snip.SnipWarning, match="not in one child of it"):
        work.fit(module, {"x": loader(), "y": loader()})
    assert list(callback.masks) == ["a.weight", "a.bias", "b.weight", "b.bias"]
    callback.masks.check(module)


def test_the_other_name_of_the_library(tmp_path):
    other = needed("pytorch_lightning")

    class Module(other.LightningModule):
        training_step, configure_optimizers = Lit.training_step, Lit.configure_optimizers

        def __init__(self):
            super().__init__()
            self.net, self.optimizer = nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), "SGD"
            self.scored = None

    module, callback = Module(), Snip(sparsity=0.5)
    trainer(tmp_path, callback, library=other).fit(module, loader())
    callback.masks.check(module.net)


def test_what_is_refused(tmp_path):
    with pytest.raises(snip.InputError, match="did you mean 'method'"):
        Snip(sparsity=0.5, methods="snip")
    for settings, words in (
        ({"sparsity": 1.5}, "sparsity is 1.5"),
        ({"sparsity": 0.5, "method": "lwc"}, "'lwc' prunes while it trains"),
        ({"sparsity": 0.5, "scope": "layers"}, "did you mean 'layer'"),
    ):
        with pytest.raises(snip.InputError, match=words):  # before any data is read
            Snip(**settings)
    with pytest.raises(snip.InputError, match="unknown module 'nett': did you mean 'net'"):
        fitted(tmp_path, Snip(sparsity=0.5, module="nett"))
    manual = Lit()
    manual.automatic_optimization = False
    with pytest.raises(snip.InputError, match="optimises by hand"):
        fitted(tmp_path, Snip(sparsity=0.5), manual)
    silent = Lit()
    silent.training_step = lambda batch: None
    with pytest.raises(snip.InputError, match="returned no loss"):
        fitted(tmp_path, Snip(sparsity=0.5), silent)
    for module in (manual, silent):
        assert snip.held_masks(module.net) is None
        assert "log" not in vars(module)
