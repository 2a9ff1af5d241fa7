"""A module, data and a trainer of Lightning, as small as they can be, and without its messages."""

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

from snip.network.parameters import Accelerated

pl = needed("lightning.pytorch")


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
