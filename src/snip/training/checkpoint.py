"""Checkpoints: written whole, verified when read, restored to the last bit."""

from __future__ import annotations

import io
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from snip.common import files
from snip.common.checks import differences
from snip.common.errors import FileError, SnipWarning, first_line
from snip.training.config import TrainConfig
from snip.training.state import different_shapes, extra_state, snapshot

FORMAT = 1
PARTS = ("format", "identity", "model", "optimizer", "rng", "state", "threads")
# How torch's unpickler reports a function or class that it was asked to call and did not.
ASKED_TO_CALL = re.compile(r"GLOBAL ([\w.]+)")
START_OVER = "restore it from a copy, or delete it to start the training over"


def save_checkpoint(
    path: Path,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: Mapping[str, Any],
    identity: Mapping[str, Any],
) -> None:
    """Put a checkpoint in place of the last one, which stays whole until that moment."""
    content = {
        "format": FORMAT,
        "identity": dict(identity),
        "model": {**snapshot(model), **_readable(extra_state(model))},
        "optimizer": optimizer.state_dict(),
        "rng": random_state(),
        "state": dict(state),
        "threads": torch.get_num_threads(),
    }
    files.write_with(path, lambda temporary: torch.save(content, temporary))


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint and refuse a damaged one; runs no code that the file may carry."""
    if not path.is_file():
        raise FileError(f"there is no checkpoint at {path}.")
    content = load_without_code(path, START_OVER)
    if not isinstance(content, dict) or any(part not in content for part in PARTS):
        raise files.damaged(path, "it is no checkpoint of a training run", START_OVER)
    if content["format"] != FORMAT:
        raise FileError(
            f"checkpoint {path} has format {content['format']!r}, this version reads {FORMAT}: "
            "finish the run with the version that began it, or delete the file to start over."
        )
    return content


def load_without_code(path: Path, fix: str) -> Any:
    """What torch.save wrote to a file; a damaged one, or one that asks to run code, is refused."""
    try:
        _verify(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # torch, zipfile and the unpickler have a dozen ways to fail. What torch's unpickler says is
        # not shown, because it begins with advice to load the file unsafely.
        called = ASKED_TO_CALL.search(str(error))
        if called is not None:
            raise FileError(
                f"{path} asks to run code ({called[1]}), which Snip never does for a file: {fix}."
            ) from error
        pickled = isinstance(error, pickle.UnpicklingError)
        reason = "its pickle holds more than weights need" if pickled else first_line(error)
        raise files.damaged(path, reason, fix) from error


def restore(
    path: Path,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    identity: Mapping[str, Any],
) -> dict[str, Any]:
    """Load the checkpoint of this very run into its parts and return its state."""
    content = load_checkpoint(path)
    _same_run(path, content["identity"], identity)
    _same_network(path, content["model"], model)
    _warn_of_threads(content["threads"])
    try:
        optimizer.load_state_dict(content["optimizer"])
        model.load_state_dict({**extra_state(model), **content["model"]})
        set_random_state(content["rng"])
    except (KeyError, ValueError, RuntimeError, TypeError) as error:
        raise files.damaged(path, error, START_OVER) from error
    return dict(content["state"])


def _readable(extra: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a model's extra state that can be read back without running code."""
    kept = {}
    for name, value in extra.items():
        buffer = io.BytesIO()
        try:
            torch.save(value, buffer)
            buffer.seek(0)
            torch.load(buffer, weights_only=True)
        except Exception:
            # An object of the user's own class: a resumed run keeps the one in its fresh model.
            continue
        kept[name] = value
    return kept


def random_state() -> dict[str, Any]:
    """The state of torch's random generators; of CUDA's only if CUDA is in use."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return {"cpu": torch.get_rng_state(), "cuda": cuda}


def set_random_state(state: Mapping[str, Any]) -> None:
    """Restore torch's random generators; of CUDA's those whose device is here."""
    torch.set_rng_state(state["cpu"])
    if torch.cuda.is_initialized():
        for device, value in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(value, device)


def _verify(path: Path) -> None:
    # torch.load does not notice flipped bits, but the zip archive has checksums that show them.
    with zipfile.ZipFile(path) as archive:
        bad = archive.testzip()
    if bad is not None:
        raise zipfile.BadZipFile(f"the checksum of {bad} is wrong")


def _warn_of_threads(theirs: int) -> None:
    ours = torch.get_num_threads()
    if theirs != ours:
        warnings.warn(
            f"this run began with {theirs} threads and goes on with {ours}: sums may differ in "
            f"their last bits. torch.set_num_threads({theirs}) resumes it exactly.",
            SnipWarning,
            stacklevel=8,  # the caller of `train`
        )


def _same_run(path: Path, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Refuse the checkpoint of another configuration, naming what differs."""
    # A checkpoint from before a new option existed was trained with the option's default.
    theirs = {**TrainConfig().to_dict(), **theirs}
    changed = differences(theirs, ours)
    if changed:
        raise FileError(
            f"checkpoint {path} belongs to another configuration ({changed}): "
            "choose another folder, or start over in this one with resume=False."
        )


def _same_network(path: Path, theirs: Mapping[str, Any], model: nn.Module) -> None:
    """Refuse the weights of another network before any is loaded."""
    wrong = different_shapes(theirs, model.state_dict())
    if wrong:
        raise FileError(
            f"checkpoint {path} holds another network (it differs at {', '.join(wrong[:3])}): "
            "choose another folder, or start over in this one with resume=False."
        )
