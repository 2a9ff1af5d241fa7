"""A run's folder: its files, and whether it is this run's, finished, or somebody else's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from snip import files
from snip.errors import FileError, InputError
from snip.runs.config import RunConfig
from snip.training.journal import CHECKPOINT, METRICS
from snip.training.lock import locked
from snip.training.trainer import ENGINE, MASKS

CONFIG = "config.json"
REPORT = "report.json"
RESULT = "result.json"
MODEL = "model.safetensors"  # the weights after the last step
SELECTED = "selected.safetensors"  # the weights that validation selects
# The result goes first: without it a folder is unfinished, whatever else is in it.
ALL = (RESULT, CHECKPOINT, METRICS, MODEL, SELECTED, REPORT, MASKS, ENGINE)


def require_own(folder: Path, config: RunConfig) -> None:
    """Refuse a folder that holds another run, or anything else."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise FileError(f"{folder} is a file: give a folder for the run.")
    path = folder / CONFIG
    if not path.exists():
        if any(not entry.name.startswith(".") for entry in folder.iterdir()):
            raise FileError(
                f"{folder} exists and is no run folder (it has no {CONFIG}): choose another."
            )
        return
    theirs, ours = _read_config(path).identity(), config.identity()
    changed = [
        f"{key} {theirs.get(key, 'default')!r} there, {ours.get(key, 'default')!r} here"
        for key in sorted({*theirs, *ours})
        if theirs.get(key) != ours.get(key)
    ]
    if changed:
        raise FileError(
            f"run folder {folder} holds another configuration ({'; '.join(changed[:4])}): "
            "choose another folder, or delete this one."
        )


def clear(folder: Path) -> None:
    """Delete this run's files, and nothing else, to start over."""
    if folder.is_dir():
        with locked(folder):
            for name in ALL:
                (folder / name).unlink(missing_ok=True)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; a damaged one is refused."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise FileError(f"there is no file {path}.") from error
    except (OSError, ValueError) as error:
        raise _damaged(path, str(error)) from error
    if not isinstance(data, dict):
        raise _damaged(path, "it holds no JSON object")
    return data


def write_json(path: Path, data: dict[str, Any]) -> None:
    """A JSON object into a file, whole or not at all."""
    files.write_text(path, json.dumps(data, indent=2, allow_nan=False) + "\n")


def write_weights(path: Path, weights: dict[str, torch.Tensor]) -> None:
    """Weights under their own names, to be loaded into a plain model without this library."""
    # Cloned, because safetensors refuses tensors that share memory, as tied weights do.
    plain = {name: value.detach().cpu().clone().contiguous() for name, value in weights.items()}
    files.write_with(path, lambda temporary: save_file(plain, temporary))


def _read_config(path: Path) -> RunConfig:
    data = read_json(path)
    try:
        return RunConfig.from_dict(data)
    except (InputError, TypeError) as error:
        raise _damaged(path, str(error)) from error


def _damaged(path: Path, reason: str) -> FileError:
    return FileError(
        f"{path} is damaged or of another version ({reason}): "
        "delete its folder, or choose another one."
    )
