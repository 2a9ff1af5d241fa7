"""Masks say which connections exist: a mapping from parameter name to a bool tensor."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import nn

from snip.common.errors import FileError, InputError, KindError
from snip.common.files import parsed_json, reading, write_tensors
from snip.common.places import PathLike
from snip.common.text import percent
from snip.distributed.models import resharded
from snip.distributed.shards import local, part, whole_masks
from snip.distributed.wrappers import unwrap
from snip.masks import fitting, holding
from snip.masks.guessing import guessed
from snip.masks.provenance import Provenance
from snip.network.network import Network
from snip.network.parameters import Predicate, ordinary

FORMATS = "snip-masks-"  # how the format of every version begins
FORMAT = f"{FORMATS}2"
ANEW = "put back a copy, or make the masks again and masks.save() them"


class Masks(Mapping[str, torch.Tensor]):
    """True where a connection is kept. Refuses anything but bool tensors by parameter name."""

    def __init__(
        self, masks: Mapping[str, torch.Tensor], provenance: Provenance | None = None
    ) -> None:
        if not isinstance(masks, Mapping) or not masks:
            raise KindError("masks must be a non-empty mapping from parameter name to bool tensor.")
        for name, mask in masks.items():
            if not isinstance(name, str):
                raise KindError(f"the mask name {name!r} is not a string.")
            if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool:
                kind = getattr(mask, "dtype", type(mask).__name__)
                raise KindError(
                    f"the mask of {name!r} is {kind}, not a bool tensor: use mask != 0."
                )
        if provenance is not None and not isinstance(provenance, Provenance):
            raise KindError(f"the provenance of masks is {provenance!r}: give a Provenance.")
        self._masks = {name: mask.detach().cpu().contiguous() for name, mask in masks.items()}
        self._provenance = provenance or Provenance()

    @property
    def provenance(self) -> Provenance:
        """How the masks were made."""
        return self._provenance

    def with_provenance(self, **changes: Any) -> Masks:
        """The same masks with some fields of their provenance changed."""
        return Masks(self._masks, dataclasses.replace(self.provenance, **changes))

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._masks[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._masks)

    def __len__(self) -> int:
        return len(self._masks)

    @property
    def total(self) -> int:
        """m: the number of connections before pruning."""
        return sum(mask.numel() for mask in self._masks.values())

    @property
    def kept(self) -> int:
        """kappa: the number of connections kept."""
        return sum(int(mask.count_nonzero()) for mask in self._masks.values())

    @property
    def sparsity(self) -> float:
        """The fraction of the connections that these masks remove."""
        return 1 - self.kept / self.total if self.total else 0.0

    def density(self, name: str) -> float:
        """The fraction kept of one parameter."""
        mask = self[name]
        return int(mask.count_nonzero()) / mask.numel() if mask.numel() else 0.0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Masks):
            return NotImplemented
        return self._masks.keys() == other._masks.keys() and all(
            torch.equal(mask, other[name]) for name, mask in self.items()
        )

    __hash__ = None  # type: ignore[assignment]

    def __or__(self, other: Masks) -> Masks:
        if not isinstance(other, Masks):
            return NotImplemented
        return self._combined(other, torch.logical_or)

    def __and__(self, other: Masks) -> Masks:
        if not isinstance(other, Masks):
            return NotImplemented
        return self._combined(other, torch.logical_and)

    def _combined(
        self, other: Masks, rule: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    ) -> Masks:
        if self.keys() != other.keys() or any(m.shape != other[n].shape for n, m in self.items()):
            raise InputError("the two masks belong to different models: names or shapes differ.")
        return Masks({name: rule(mask, other[name]) for name, mask in self.items()})

    def __repr__(self) -> str:
        return (
            f"Masks({percent(self.sparsity)} sparse: {self.kept:,} of {self.total:,} connections "
            f"kept in {len(self)} parameters)"
        )

    def _repr_html_(self) -> str:
        from snip.masks.html import as_html

        return as_html(self)

    def digest(self) -> str:
        """A checksum of names, shapes and bits."""
        digest = hashlib.sha256()
        for name, mask in self.items():
            bits = np.packbits(mask.numpy())
            digest.update(f"{name}{tuple(mask.shape)}".encode() + bits.tobytes())
        return digest.hexdigest()[:16]

    def apply(self, model: nn.Module) -> None:
        """Zero the pruned weights and keep them zero through training.

        Masks that the model already holds are replaced where these name the same parameters. If
        the masks do not fit the model, nothing is changed.
        """
        model = resharded(model)
        self.check_fit(model)
        changed = fitting.changed_by(self, model)
        holding.hold(model, self._masks, self.provenance)
        for normed in changed:
            normed.renew()

    def check(self, model: nn.Module) -> None:
        """Raise if any pruned weight of `model` is not exactly zero."""
        self.check_fit(model)
        parameters = dict(unwrap(model).named_parameters())
        for name, mask in self.items():
            own = local(parameters[name])  # of a sharded model, each process checks its part
            pruned = ~part(mask, parameters[name]).to(own.device)
            alive = int(torch.count_nonzero(own[pruned]))
            if alive:
                raise InputError(
                    f"{alive:,} pruned weights of {name!r} are not zero: the masks are not "
                    "applied to this model; call masks.apply(model)."
                )
        holding.follow(unwrap(model))

    @classmethod
    def from_zeros(cls, model: nn.Module, params: Predicate | None = None) -> Masks:
        """Masks of a model whose pruned weights are zero already, to train or prune it further.

        A tensor that is zero all over may only not be trained yet: such a weight is kept whole,
        and such a bias gets no mask.
        """
        chosen = Network.of(resharded(model), params).require_competing()
        found = {name: local(parameter) != 0 for name, parameter in chosen.items()}
        return cls(guessed(whole_masks(found, chosen)), Provenance(method="from_zeros"))

    def save(self, path: PathLike) -> None:
        """Write a safetensors file with the provenance in its header."""
        _check_path(path)
        header = {
            "format": FORMAT,
            "order": json.dumps(list(self)),
            "provenance": json.dumps(self.provenance.to_dict(), sort_keys=True),
        }
        header["checksum"] = checksum(self, header)
        write_tensors(path, self._masks, header)

    @classmethod
    def load(cls, path: PathLike) -> Masks:
        """Read what `save` wrote."""
        _check_path(path)
        with reading(path, what="mask file", fix=ANEW):
            with safe_open(Path(path), framework="pt") as file:
                header = file.metadata() or {}
                masks = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if not header.get("format", "").startswith(FORMATS):
                raise FileError(
                    f"{path} is a safetensors file, but not of masks: it has no header "
                    f"{FORMAT!r}. Give a file that masks.save() wrote."
                )
            if header["format"] != FORMAT:
                raise ValueError(f"it has the format {header['format']}, not {FORMAT}")
            # safetensors sorts by name; the model's order is part of what was saved.
            order = parsed_json(header["order"])
            if sorted(order) != sorted(masks):
                raise ValueError("its masks are not those that its header names")
            if any(mask.view(torch.uint8).gt(1).any() for mask in masks.values()):
                raise ValueError("a byte that is neither true nor false")
            provenance = Provenance.from_dict(parsed_json(header["provenance"]))
            loaded = cls({name: masks[name] for name in order}, provenance)
            if header.pop("checksum") != checksum(loaded, header):
                raise ValueError("its checksum does not agree")
            return loaded

    def check_fit(self, model: nn.Module) -> None:
        """Raise unless `model` has a parameter of the same name and shape for every mask."""
        fitting.check_fit(self, model)


def _check_path(path: object) -> None:
    if not isinstance(path, (str, os.PathLike)):
        raise KindError(f"the path of a mask file is {path!r}: give a string or a Path.")


def checksum(masks: Masks, header: Mapping[str, str]) -> str:
    """Over masks and the other entries of their file's header: no byte can change unnoticed."""
    content = json.dumps([masks.digest(), dict(header)], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def held_masks(model: nn.Module) -> Masks | None:
    """The masks that a pruned model holds, or None."""
    found = holding.held(ordinary(model))
    return None if found is None else Masks(*found)


def release(model: nn.Module) -> None:
    """Stop holding the masks: the weights stay as they are and may grow again."""
    holding.release(ordinary(model))
