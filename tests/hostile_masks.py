"""Masks and compact models, attacked: the headers of safetensors files."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from hostile_values import Kind
from networks import make
from safetensors.torch import load_file, save_file

import snip
from snip.common.errors import SnipWarning
from snip.export import compact
from snip.export.shrink import shrink
from snip.masks.masks import checksum as masks_checksum


def header_of(path: Path) -> dict[str, str]:
    """The strings in the header of a safetensors file."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + size]).get("__metadata__", {})


def header_trees(path: Path) -> dict[str, Any]:
    return {
        name: json.loads(text)
        for name, text in header_of(path).items()
        if name not in ("format", "checksum")
    }


def write_header(path: Path, name: str, tree: Any, sum_up: Callable[..., str]) -> None:
    tensors = load_file(path)
    header = {**header_of(path), name: json.dumps(tree)}
    del header["checksum"]
    save_file(tensors, path, metadata={**header, "checksum": sum_up(header, tensors)})


@cache
def pruned(kind: str) -> torch.nn.Module:
    """A pruned network, and for "small" a shrunk one."""
    torch.manual_seed(0)
    model, batch = make("mlp" if kind == "small" else kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SnipWarning)
        snip.prune(model, batch, sparsity=0.8)
    return shrink(model, batch) if kind == "small" else model


def compact_kind(name: str) -> Kind:
    def make_it(folder: Path) -> Path:
        compact.save(pruned(name), folder / "model")
        return folder / "model"

    def read_it(path: Path) -> Any:
        model = compact.load(path, make("mlp" if name == "small" else name)[0])
        masks = snip.held_masks(model)
        return dict(model.state_dict()), dict(masks or {}), masks and masks.provenance.to_dict()

    def write_it(path: Path, part: str, tree: Any) -> None:
        write_header(path, part, tree, compact.checksum)

    return Kind(make_it, read_it, header_trees, write_it)


def make_masks(folder: Path) -> Path:
    masks = snip.held_masks(pruned("mlp"))
    assert masks is not None
    masks.save(folder / "masks.safetensors")
    return folder / "masks.safetensors"


def read_masks(path: Path) -> Any:
    masks = snip.Masks.load(path)
    return list(masks), dict(masks), masks.provenance.to_dict()


def write_masks(path: Path, part: str, tree: Any) -> None:
    def sum_up(header: dict[str, str], tensors: dict[str, torch.Tensor]) -> str:
        return masks_checksum(snip.Masks({name: tensors[name] for name in order}), header)

    order = json.loads(header_of(path)["order"])
    write_header(path, part, tree, sum_up)
