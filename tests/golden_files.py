"""Golden files: one of each format and version, which every later version reads."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from golden_masks import Rows, Value, about_masks, digest, mnist
from golden_networks import small
from golden_runs import SMALL, TRAININGS, about_weights, data_folder, finished, snip_output
from torch import nn

import snip
from snip.runs import RunConfig, run

FOLDER = Path(__file__).with_name("golden")
RESULTS = Path(__file__).parents[1] / "results"
# The runs of files, and at which step of a training each was stopped. The runs of both methods that
# train begin with the same dense training, which the first of them does.
HALF_DONE = {"small snip": 13, "small lwc": 26, "small dns": 12}
RECORD = ("gap-sws", "--only", "base")  # of results/, with nothing left to do
PRINTED = ("paper %", "selected %", "best %", "seeds")  # columns of its table


class StoppedError(Exception):
    """Raised in the middle of a training, as by a kill."""


@contextlib.contextmanager
def stopped_at(step: int) -> Iterator[None]:
    """Stop the trainings inside at this step, counted over all of them."""
    steps = 0

    def count(module: nn.Module, _inputs: object) -> None:
        nonlocal steps
        if isinstance(module, nn.BatchNorm2d) and module.training:
            steps += 1
            if steps == step:
                raise StoppedError

    hook = nn.modules.module.register_module_forward_pre_hook(count)
    try:
        with contextlib.suppress(StoppedError):
            yield
    finally:
        hook.remove()


def write_files(folder: Path) -> None:
    """Write a file of each format that has to be read for ever."""
    folder.mkdir(parents=True)
    batch = mnist(1, 20)[0]
    for name, options in {"elements": {}, "channels": {"granularity": "channel"}}.items():
        torch.manual_seed(0)
        model = small()
        snip.prune(model, batch, sparsity=0.5, **options).save(folder / f"{name}.masks.safetensors")
        model = snip.shrink(model, batch) if options else model
        snip.compact.save(model, folder / f"{name}.compact")
        again = snip.compact.load(folder / f"{name}.compact", small())
        if not torch.equal(again.eval()(batch[0]), model.eval()(batch[0])):
            raise RuntimeError(f"{name}.compact is not what was saved")
    where = {"data_dir": data_folder(), "progress": False}
    run(replace(SMALL, engine="dense"), folder=folder / "finished", **where)
    for name, step in HALF_DONE.items():
        place = folder / "half-done" / name.replace(" ", "-")
        with stopped_at(step):
            config = replace(TRAININGS[name], engine="dense")
            run(config, folder=place, checkpoint_seconds=0, **where)
    shutil.copy(RESULTS / f"{RECORD[0]}.json", folder)
    for lock in folder.rglob(".lock"):
        lock.unlink()


def read_masks(folder: Path, name: str) -> Value:
    """What the masks of a file say, and that they fit their network."""
    masks = snip.Masks.load(folder / f"{name}.masks.safetensors")
    masks.apply(small())
    about = masks.provenance
    made = {"method": about.method, "sparsity": about.sparsity_asked, "scope": about.scope}
    return about_masks(lambda: masks) | made | {"granularity": about.granularity}


def read_compact(folder: Path, name: str) -> Value:
    """Outputs of the network in a compact file."""
    model = snip.compact.load(folder / f"{name}.compact", small())
    held = snip.held_masks(model)
    images = mnist(1, 20)[0][0]
    return {
        **about_weights({"outputs": model.eval()(images).detach(), **model.state_dict()}),
        "masks": None if held is None else digest(held),
    }


def read_run(folder: Path, config: RunConfig) -> Value:
    """How far the run in a copy of `folder` had come, and what it comes to."""
    states: list[str] = []
    evaluated: list[int] = []
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(shutil.copytree(folder.parent, Path(scratch) / "copy")) / folder.name
        found = finished(
            config, copy, on_state=states.append,
            on_metrics=lambda metrics: evaluated.append(metrics.iteration),
        )  # fmt: skip
    return found | {"states": states, "evaluated": evaluated}


def read_record(folder: Path) -> Value:
    """Numbers in the table that a command prints of a record, by the labels of its rows."""
    name, *options = RECORD
    with tempfile.TemporaryDirectory() as scratch:
        results, runs = Path(scratch, "results"), Path(scratch, "runs")
        results.mkdir()
        shutil.copy(folder / f"{name}.json", results)
        where = ("--results", str(results), "--out", str(runs))
        lines = snip_output("reproduce", name, *options, "--missing", *where).splitlines()
    split = [re.split(r"\s{2,}", line.strip()) for line in lines]
    heading, *rows = [cells for cells in split if len(cells) > len(PRINTED)]
    table = {label: dict(zip(heading, cells, strict=True)) for label, *cells in rows}
    return {label: {name: cells[name] for name in PRINTED} for label, cells in table.items()}


def files() -> Rows:
    """Section of the files, those of each version."""
    rows: Rows = {}
    for folder in sorted(path for path in FOLDER.glob("files-*") if path.is_dir()):
        for name in ("elements", "channels"):
            rows[f"{folder.name} masks of {name}"] = partial(read_masks, folder, name)
            rows[f"{folder.name} compact {name}"] = partial(read_compact, folder, name)
        rows[f"{folder.name} finished"] = partial(read_run, folder / "finished", SMALL)
        for name in HALF_DONE:
            place = folder / "half-done" / name.replace(" ", "-")
            rows[f"{folder.name} half-done {name}"] = partial(read_run, place, TRAININGS[name])
        rows[f"{folder.name} record"] = partial(read_record, folder)
    return rows
