"""The trainers' callbacks in two real processes: each scores its own batch, all get one mask."""

import logging
import os
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torchvision_names  # noqa: F401  before transformers and lightning import torchvision
from expected_warnings import expects
from needed import needed
from processes import found_in_processes
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import snip

SAMPLES, BATCH, STEPS, SPARSITY = 32, 4, 3, 0.7
TRAINERS = ("accelerate", "transformers", "lightning")
# What a program that torchrun starts finds; the processes have met by then, by another way.
STARTED = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "GROUP_RANK": "0"}


class Net(nn.Module):
    """Small, with the loss that the Trainer asks for; keeps the first batch that it sees."""

    def __init__(self, broken=False):
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
        self.broken, self.seen = broken, None

    def forward(self, inputs, labels=None):
        if self.seen is None:
            object.__setattr__(self, "seen", inputs.clone())
        if self.broken:
            raise ValueError("no such column")
        outputs = self.layers(inputs)
        return outputs if labels is None else {"loss": cross_entropy(outputs, labels)}


def data():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(SAMPLES, 6, generator=generator), torch.arange(SAMPLES) % 4


def loss_of(model, batch):
    return cross_entropy(model(batch[0]), batch[1])


def with_accelerate(net, rank, folder, **options):
    from accelerate import Accelerator

    from snip.integrations.accelerate import Snip

    accelerator = Accelerator(cpu=True)
    torch.manual_seed(rank)  # the processes draw apart: their parts must be of one order
    loader = DataLoader(TensorDataset(*data()), batch_size=BATCH, shuffle=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    model, loader, optimizer = accelerator.prepare(net, loader, optimizer)
    pruning = Snip(accelerator, model, SPARSITY, loss_fn=loss_of, **options)
    pruning.start(loader, optimizer)
    for _, batch in zip(range(STEPS), loader, strict=False):
        optimizer.zero_grad()
        accelerator.backward(loss_of(model, batch))
        optimizer.step()
    accelerator.save_state(folder / "state")
    again = Snip(accelerator, model, 0.1)
    again.load_state_dict(pruning.state_dict())
    assert again.start(loader) == pruning.masks
    return pruning.masks


def with_transformers(net, rank, folder, **options):
    from transformers import Trainer, TrainingArguments

    from snip.integrations.transformers import FILE, Snip

    inputs, labels = data()
    rows = [{"inputs": x, "labels": y} for x, y in zip(inputs, labels, strict=True)]
    arguments = TrainingArguments(
        output_dir=str(folder / "trainer"), max_steps=STEPS, per_device_train_batch_size=BATCH,
        use_cpu=True, ddp_backend="gloo", report_to=[], disable_tqdm=True, logging_strategy="no",
        save_strategy="steps", save_steps=STEPS, label_names=["labels"],
    )  # fmt: skip
    callback = Snip(SPARSITY, loss_fn=lambda model, batch: model(**batch)["loss"], **options)
    Trainer(net, arguments, train_dataset=rows, callbacks=[callback]).train()
    dist.barrier()  # the first process writes the file
    assert snip.Masks.load(folder / f"trainer/checkpoint-{STEPS}" / FILE) == callback.masks
    return callback.masks


def with_lightning(net, rank, folder, **options):
    import lightning.pytorch as pl
    from lightning.pytorch.plugins.environments import TorchElasticEnvironment
    from lightning.pytorch.strategies import DDPStrategy

    from snip.integrations.lightning import Snip

    class Lit(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net

        def training_step(self, batch, batch_idx):
            loss = loss_of(self.net, batch)
            self.log("loss", loss, sync_dist=True)
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    callback = Snip(SPARSITY, **options)
    environment = TorchElasticEnvironment()
    strategy = DDPStrategy(cluster_environment=environment, process_group_backend="gloo")
    trainer = pl.Trainer(
        max_steps=STEPS, callbacks=[callback], default_root_dir=folder, accelerator="cpu",
        devices=2, strategy=strategy, logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False,
    )  # fmt: skip
    trainer.fit(Lit(), DataLoader(TensorDataset(*data()), batch_size=BATCH, shuffle=True))
    return callback.masks


def sharded(net, rank, folder, **options):
    """A model that the user has given to `fully_shard`, in a loop with Accelerate."""
    from accelerate import Accelerator
    from torch.distributed.fsdp import fully_shard

    from snip.integrations.accelerate import Snip

    accelerator = Accelerator(cpu=True)
    fully_shard(net)
    loader = accelerator.prepare(DataLoader(TensorDataset(*data()), batch_size=BATCH))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    pruning = Snip(accelerator, net, SPARSITY, loss_fn=loss_of, **options)
    pruning.start(loader, optimizer)
    for _, batch in zip(range(STEPS), loader, strict=False):
        optimizer.zero_grad()
        loss_of(net, batch).backward()
        optimizer.step()
    return pruning.masks


WAYS = {
    "accelerate": with_accelerate,
    "transformers": with_transformers,
    "lightning": with_lightning,
    "sharded": sharded,
}


def refused(train, net):
    before = snip.held_masks(net)
    try:
        train(net)
    except (snip.InputError, ValueError) as error:
        return str(error), snip.held_masks(net) == before
    raise AssertionError("nothing was refused")


def other_masks(rank):
    """Models that hold other masks in one process than in the other."""
    net = Net()
    ones = {"layers.0.weight": torch.ones(16, 6, dtype=torch.bool)}
    ones["layers.0.weight"][rank] = False
    snip.Masks(ones).apply(net)
    return net


def no_data(net, rank):
    from accelerate import Accelerator

    from snip.integrations.accelerate import Snip

    batch = [part[:BATCH] for part in data()]
    Snip(Accelerator(cpu=True), net, SPARSITY).start([] if rank else [batch])


def work(rank, count, folder):
    os.environ |= {**STARTED, "RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"WORLD_SIZE": str(count), "TORCHELASTIC_RUN_ID": "here"}
    warnings.simplefilter("ignore")

    logging.disable(logging.WARNING)
    found = {}
    for name, train in WAYS.items():
        place = Path(folder) / name
        net = Net()
        masks = train(net, rank, place)
        masks.check(net)
        held = snip.held_masks(net)
        found[name] = {"masks": dict(held), "same": held == masks, "seen": net.seen}
        if name not in TRAINERS:
            continue  # passes of fully_shard talk: who fails in one is missed only when it ends
        bad = Net(broken=rank == 1)
        found[f"{name} error"] = refused(partial(train, rank=rank, folder=place), bad)
    found["no data"] = refused(partial(no_data, rank=rank), Net())
    train = partial(with_accelerate, rank=rank, folder=Path(folder) / "other")
    found["other masks"] = refused(train, other_masks(rank))
    torch.save(found, f"{folder}/{rank}.pt")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    for library in TRAINERS:
        needed(library)
    folder = tmp_path_factory.mktemp("trainers")
    return found_in_processes(work, folder)


@pytest.mark.parametrize("name", WAYS)
@expects("losses")
def test_the_masks_are_those_of_one_process_on_the_batches_of_all(name, found):
    first, second = (one[name] for one in found)
    assert first["same"]
    assert second["same"]
    assert snip.Masks(first["masks"]) == snip.Masks(second["masks"])
    inputs, labels = data()
    both = torch.cat([first["seen"], second["seen"]])
    rows = [int((inputs == row).all(1).nonzero()) for row in both]
    assert len(set(rows)) == 2 * BATCH  # no sample twice
    alone = snip.prune(Net(), (both, labels[rows]), sparsity=SPARSITY)
    assert alone == snip.Masks(first["masks"])
    one = snip.prune(Net(), (first["seen"], labels[rows[:BATCH]]), sparsity=SPARSITY)
    assert one != alone  # so that the second process had a say


@pytest.mark.parametrize("name", TRAINERS)
def test_an_error_in_one_process_ends_all_with_its_words(name, found):
    (first, unpruned), (second, untouched) = (one[f"{name} error"] for one in found)
    assert first == "in process 1: ValueError: no such column"
    assert second == "no such column"
    assert unpruned
    assert untouched


def test_processes_that_have_no_data_or_other_masks_are_told(found):
    texts = [one["no data"][0] for one in found]
    assert all("the training data has no batch to prune on" in text for text in texts)
    assert texts[0].startswith("in process 1: ")
    for one in found:
        assert "the processes differ: masks" in one["other masks"][0]
        assert "Load the same checkpoint" in one["other masks"][0]
