"""Golden runs: weights and metrics after twenty steps, settings, and rows of experiments."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import struct
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from golden_masks import Rows, Value, digest, pattern
from safetensors.torch import load_file
from torch import Tensor

import snip
from snip.cli import main as snip_command
from snip.data import load
from snip.runs import RunConfig, run

TWENTY = snip.TrainConfig(lr=0.05, batch_size=20, iterations=20, lr_drops=(12,), eval_every=10)
SMALL = RunConfig("golden_networks:small", 0.8, train=replace(TWENTY, eval_every=5))
SLOW = replace(TWENTY, lr=0.02, batch_size=10)
TRAININGS = {
    "lenet-300-100 dense": RunConfig("lenet-300-100", 0, train=TWENTY),
    "lenet-300-100 snip": RunConfig("lenet-300-100", 0.9, train=TWENTY),
    "lenet-300-100 adam, redraw": RunConfig(
        "lenet-300-100", 0.9, protocol="redraw", train_initializer="vs-x", seed=3,
        train=replace(TWENTY, optimizer="adam", lr=1e-3, weight_decay=0.0),
    ),
    "lenet-300-100 adamw, shuffled labels": RunConfig(
        "lenet-300-100", 0.9, method="synflow", labels="shuffled",
        train=replace(TWENTY, optimizer="adamw", lr=1e-3, validation=0.0),
    ),
    "lenet-300-100 lwc": RunConfig("lenet-300-100", 0.9, method="lwc", train=TWENTY),
    "lenet-300-100 dns": RunConfig("lenet-300-100", 0.9, method="dns", train=TWENTY),
    "lenet-5-caffe dense": RunConfig("lenet-5-caffe", 0, train=SLOW),
    "lenet-5-caffe snip": RunConfig("lenet-5-caffe", 0.95, train=SLOW),
    "lenet-5-caffe shuffle": RunConfig("lenet-5-caffe", 0.95, control="shuffle", train=SLOW),
    "gru-s snip": RunConfig("gru-s", 0.9, train=TWENTY),
    "resnet-20 snip": RunConfig(
        "resnet-20", 0.9, train=replace(SLOW, batch_size=5, weight_decay_factor=2.0)
    ),
    "small snip": replace(SMALL, seed=1),
    "small lwc": replace(SMALL, method="lwc"),
    "small dns": replace(SMALL, method="dns"),
}  # fmt: skip
METRICS = (
    "iteration", "lr", "train_loss", "train_error", "valid_loss", "valid_error", "test_loss",
    "test_error", "sparsity",
)  # fmt: skip
OF_RESULT = (
    "kept", "total", "selected_iteration", "test_error", "final_test_error", "best_test_error",
)  # fmt: skip


@cache
def data_folder() -> Path:
    """Folder with the first images of MNIST and with made-up ones in the place of CIFAR-10."""
    folder = Path(tempfile.mkdtemp(prefix="snip-golden-data-"))
    mnist = load("mnist")
    (folder / "MNIST").mkdir()
    for part, split in (("train", mnist.train.subset(200)), ("t10k", mnist.test.subset(50))):
        for name, array in (("images-idx3", split.images[:, 0]), ("labels-idx1", split.labels)):
            head = struct.pack(f">{1 + array.ndim}I", 0x0800 + array.ndim, *array.shape)
            content = head + array.numpy().astype(np.uint8).tobytes()
            (folder / "MNIST" / f"{part}-{name}-ubyte").write_bytes(content)
    (folder / "cifar-10-batches-bin").mkdir()
    images = pattern(6 * 12, 32).reshape(6, 12, -1)
    for number, part in enumerate((*(f"data_batch_{n}" for n in range(1, 6)), "test_batch")):
        labels = (np.arange(12, dtype=np.uint8) + number)[:, None] % 10
        content = np.hstack([labels, images[number]]).tobytes()
        (folder / "cifar-10-batches-bin" / f"{part}.bin").write_bytes(content)
    return folder


def finished(config: RunConfig, folder: Path | None = None, **options: Any) -> Value:
    """What a run comes to; `folder` is where it goes on, if it has begun."""
    config = replace(config, engine="dense")
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch) / config.folder_name if folder is None else folder
        run(config, folder=place, data_dir=data_folder(), progress=False, **options)
        lines = (place / "metrics.jsonl").read_text().splitlines()
        result = json.loads((place / "result.json").read_text())
        kept = {} if not config.sparsity else snip.Masks.load(place / "masks.safetensors")
        weights = about_weights(load_file(place / "model.safetensors"))
        selected = about_weights(load_file(place / "selected.safetensors"))
        return {
            "masks": digest(kept),
            "result": {name: result[name] for name in OF_RESULT},
            "metrics": [{name: json.loads(line)[name] for name in METRICS} for line in lines],
            "weights": weights,
            "selected": {} if selected == weights else selected,
        }


def about_weights(weights: Mapping[str, Tensor]) -> Value:
    """Sums, size and a few values of each tensor; zeros are what masks are compared for."""
    found = {}
    for name, tensor in sorted(weights.items()):
        flat = tensor.flatten().double()
        alive = flat[flat != 0]
        if not len(alive):
            found[name] = {"alive": 0}
            continue
        some = torch.linspace(0, len(alive) - 1, min(5, len(alive))).long()
        found[name] = {
            "alive": len(alive),
            "sum": float(alive.sum()),
            "absolute": float(alive.abs().sum()),
            "rms": float(alive.square().mean().sqrt()),
            "some": alive[some].tolist(),
        }
    return found


def training() -> Rows:
    """Section of the trainings."""
    return {name: partial(finished, config) for name, config in TRAININGS.items()}


DRY_RUNS = (
    "--model lenet-5-caffe --sparsity 0.98 --schedule short",
    "--model lenet-300-100 --sparsity 0",
    "--model lenet-300-100 --sparsity 0.917 --method lwc",
    "--model lenet-300-100 --granularity 2:4 --biases keep",
    "--model lenet-300-100 --sparsity 0.9 --control shuffle --labels shuffled --engine dense",
    "--model vgg-d --sparsity 0.95 --protocol redraw --init vs-h --init-train vs-x --seed 7",
    "--model alexnet-s --dataset tiny-imagenet --sparsity 0.9 --epochs 2 --no-augment",
    "--model resnet-20 --sparsity 0.9 --budget flops --batch-norm train --resume",
    "--model wrn-16-8 --sparsity 0.9 --scope global --floor 0.01 --augment",
    "--model gru-s --sparsity 0.9 --optimizer adamw --iterations 100 --lr-drops 50,80"
    " --lr-factor 0.2 --weight-decay 0.02 --weight-decay-factor 0.5 --validation 0.2"
    " --eval-every 10 --batch-size 50",
    "--model lenet-300-100 --sparsity 0.9 --method synflow --scope layer --score-batches 3"
    " --score-batch-size 64 --reduction ema --decay 0.5 --momentum 0.5 --lr 0.05",
    "--model golden_networks:small --sparsity 0.9 --epochs 3 --optimizer adam",
)


def snip_output(*arguments: str) -> str:
    """Standard output of a command."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = snip_command(list(arguments))
    if code:
        raise RuntimeError(f"snip {shlex.join(arguments)} ended with {code}: {printed.getvalue()}")
    return printed.getvalue()


def dry_run(flags: str) -> Value:
    """Settings that `snip run --dry-run` prints, by name, and the name of the folder."""
    lines = snip_output("run", *shlex.split(flags), "--dry-run").splitlines()
    found = {name: " ".join(value) for name, *value in map(str.split, lines) if value}
    return found | {"folder": Path(found["folder"].split()[0]).name}


def dry_runs() -> Rows:
    """Section of the settings of runs."""
    return {flags: partial(dry_run, flags) for flags in DRY_RUNS}


def experiment(name: str) -> Value:
    """Rows of an experiment: the paper's printed number, and the folder of the run of seed 0.

    The sparsities of `budgets` are found by scoring: its folders are those of the base.
    """
    from snip.experiments import EXPERIMENTS

    found = EXPERIMENTS[name]
    return [
        {
            "label": row.label,
            "paper": row.paper,
            "std": row.paper_std,
            "seeds": row.seeds or found.seeds,
            "folder": replace(row.config, seed=0).folder_name,
        }
        for row in found.rows()
    ]


def experiments() -> Rows:
    """Section of the experiments, those that `snip reproduce` lists."""
    names = [line.split()[0] for line in snip_output("reproduce").splitlines() if line.strip()]
    return {name: partial(experiment, name) for name in names}
