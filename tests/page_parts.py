"""Run folders for the tests of the page: small ones that ran, and hostile ones that did not."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import torch

from snip.cli import main
from snip.cli.repeating import command_of
from snip.data import load
from snip.masks import Masks, Provenance
from snip.page.book import Book
from snip.runs import RunConfig, run
from snip.training import TrainConfig

TRAIN = TrainConfig(iterations=40, lr_drops=(20,), batch_size=20, eval_every=10)
# Whatever of these becomes markup or script sets window.hacked, or asks the network for something.
MARKUP = "<img src=x onerror=window.hacked=1>"
SCRIPT = "</script><script>window.hacked=1</script>"
QUOTES = "\"'><svg onload=window.hacked=1>{{7*7}}{% raw %}`${window.hacked=1}`"
HOSTILE = (MARKUP, SCRIPT, QUOTES, "\u202e\x1b[2J", "--><!--", "</title><style>*{display:none}")


def small_run(
    folder: Path, model: str = "lenet-300-100", sparsity: float = 0.95, *, every: int = 10, **fields
) -> Path:
    """A finished run of a few steps."""
    train = dataclasses.replace(TRAIN, eval_every=every)
    config = RunConfig(model, sparsity, train=train, engine="dense", **fields)
    return run(config, folder=folder, progress=False).folder


def page_of(*folders: Path, score: bool = False) -> str:
    return Book(folders, command_of, load, score=score).page()


def html_of(folder: Path, *, score: bool) -> str:
    """The page without what JSON and HTML make of quotes."""
    return page_of(folder, score=score).replace("\\u0027", "'").replace("&#39;", "'")


def hostile_run(folder: Path, like: Path) -> Path:
    """A folder whose every string is hostile, in the form of a finished run."""
    folder.mkdir(parents=True)
    evil = " ".join(HOSTILE)
    config = dataclasses.replace(RunConfig.from_dict(_read(like / "config.json")), model=f"{evil}:")
    data = config.to_dict()
    _write(folder / "config.json", data)
    result = _read(like / "result.json") | {"config": data, "dataset_note": evil, "note": evil}
    result |= {"device": evil, "date": evil, "machine": {evil: evil}, "versions": {evil: evil}}
    result |= {"engine": {"engine": evil, "step_seconds": {evil: 0.1}}, "cost": {}}
    _write(folder / "result.json", result)
    report = _read(like / "report.json") | {"model": evil, "warnings": [evil], "notes": [evil]}
    report |= {"granularity_note": evil, "left_out": {evil: evil}, "left_out_sizes": {evil: 1}}
    for row, name in zip(report["rows"], HOSTILE, strict=False):
        row["name"] = name
    _write(folder / "report.json", report)
    masks = {f"{name}.weight": torch.eye(784).bool() for name in HOSTILE}
    Masks(masks, Provenance(model=evil, input_shape=(1, 28, 28))).save(folder / "masks.safetensors")
    (folder / "metrics.jsonl").write_text((like / "metrics.jsonl").read_text())
    return folder


def _read(path: Path) -> dict:
    return json.loads(path.read_text())


def _write(path: Path, data: dict) -> None:
    path.write_text(json.dumps(data))


def made(path: Path, *runs: object) -> Path:
    assert main(["report", *map(str, runs), "-o", str(path)]) == 0
    return path
