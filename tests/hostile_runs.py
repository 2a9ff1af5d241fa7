"""The files of a run's folder, attacked."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from hostile_values import Kind

from snip.cli.reading import Weights, read
from snip.runs import RunConfig, RunResult, run
from snip.training import TrainConfig


@cache
def finished_run() -> dict[str, bytes]:
    """The files of a small finished run."""
    training = TrainConfig(iterations=4, lr_drops=(), batch_size=20, eval_every=2)
    with tempfile.TemporaryDirectory() as folder:
        config = RunConfig("lenet-300-100", 0.99, train=training, engine="sparse")
        run(config, folder=folder, progress=False)
        return {path.name: path.read_bytes() for path in Path(folder).glob("[!.]*")}


def run_file(name: str, read_it: Callable[[Path], Any], *, summed: bool = True) -> Kind:
    """A JSON file of a run; a sum of it is renewed together with its fields."""

    def make_it(folder: Path) -> Path:
        for other, content in finished_run().items():
            (folder / other).write_bytes(content)
        return folder / name

    def trees(path: Path) -> dict[str, Any]:
        text = path.read_text()
        return (
            {"file": [json.loads(line) for line in text.splitlines()]}
            if lines
            else {"file": json.loads(text)}
        )

    def write_it(path: Path, part: str, tree: Any) -> None:
        text = "\n".join(map(json.dumps, tree)) + "\n" if lines and isinstance(tree, list) else ""
        path.write_text(text or json.dumps(tree) + "\n")
        sums = path.parent / "sums.json"
        content = json.loads(finished_run()["sums.json"])
        if path != sums:
            content["sha256"][name] = hashlib.sha256(path.read_bytes()).hexdigest()
            sums.write_text(json.dumps(content))

    lines = name.endswith(".jsonl")
    return Kind(make_it, read_it, trees, write_it, summed)


def read_weights(path: Path) -> Any:
    found = read(path)
    return found.state if isinstance(found, Weights) else dict(found)


def history(path: Path) -> Any:
    return [line.to_dict() for line in RunResult.read(path.parent).history()]
