"""Tell masks, weights and checkpoints apart by what is in the file, and read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open

from snip.common.checks import fits
from snip.common.errors import FileError
from snip.common.files import reading
from snip.masks import Masks
from snip.masks.masks import FORMATS
from snip.models import MODELS
from snip.runs import RunConfig, resolve_model
from snip.runs.sums import require_as_summed
from snip.training import load_checkpoint
from snip.training.checkpoint import PARTS
from snip.training.state import different_shapes, extra_state
from snip.training.torch_files import read_torch

State = dict[str, torch.Tensor]
ZIP = b"PK"  # how a file of torch.save begins


class Weights(NamedTuple):
    """The tensors of a model's file, and what kind of file it is."""

    state: State
    kind: str
    iteration: int | None = None  # of a run's checkpoint


def read(path: Path) -> Masks | Weights:
    """The masks or the weights in a file, whichever it holds."""
    fix = "give a file that safetensors or torch.save wrote whole, or a run's folder"
    with reading(path, fix=fix):
        require_as_summed(path)
        with path.open("rb") as file:
            packed = file.read(len(ZIP)) == ZIP
        if packed:
            return _torch_file(path)
        try:
            with safe_open(path, framework="pt") as tensors:
                if (tensors.metadata() or {}).get("format", "").startswith(FORMATS):
                    return Masks.load(path)
                names = list(tensors.keys())
                return Weights({name: tensors.get_tensor(name) for name in names}, "weights")
        except SafetensorError as error:
            raise ValueError(f"it is neither masks nor weights: {error}") from error


def read_weights(path: Path) -> State:
    """The weights in a file; masks are refused."""
    found = read(path)
    if isinstance(found, Masks):
        raise FileError(f"{path} holds masks, not weights: give a file of weights.")
    return found.state


def load_into(model: torch.nn.Module, state: State, path: Path) -> None:
    """Put the weights of a file into a network, or say where the two differ."""
    own = model.state_dict()
    differ = different_shapes(state, own)
    if differ:
        name = differ[0]
        there, here = (
            tuple(weights[name].shape) if name in weights else "missing" for weights in (state, own)
        )
        raise FileError(
            f"{path} holds the weights of another network: {name!r} is {there} there and {here} "
            f"here{f', and {len(differ) - 1} more differ' if differ[1:] else ''}."
        )
    model.load_state_dict({**extra_state(model), **state})


def network_of(masks: Masks, model: str | None, dataset: str | None) -> torch.nn.Module | None:
    """The network that masks were made for, if it is known."""
    dataset = dataset or masks.provenance.dataset or ""
    if model is not None:
        return resolve_model(model, RunConfig(model, 0, dataset).dataset)
    name = masks.provenance.model
    # A file must not make us import code: a user's own network is built only if they name it.
    if name is None or name not in MODELS or dataset not in MODELS[name].datasets:
        return None
    return resolve_model(name, dataset)


def _torch_file(path: Path) -> Weights:
    fix = "give one that is read without running code: torch.save(model.state_dict(), path)"
    with reading(path, fix=fix):
        content = read_torch(path, fix)
    if isinstance(content, dict) and all(part in content for part in PARTS):
        content = load_checkpoint(path)
        return Weights(_tensors(content["model"], path), "checkpoint", _iteration(content))
    return Weights(_tensors(content, path), "weights")


def _iteration(content: dict[str, Any]) -> int | None:
    done = content["state"].get("iteration")
    return done if fits(done, int) else None


def _tensors(content: object, path: Path) -> State:
    if isinstance(content, dict):
        found = {str(k): v for k, v in content.items() if isinstance(v, torch.Tensor)}
        if found:
            return found
    raise FileError(f"{path} holds no tensors by name: give a state_dict.")
