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

from snip.common.errors import FileError, InputError, KindError, nearest
from snip.common.files import PathLike, parsed_json, reading, write_tensors
from snip.common.text import html_page, html_table, listed, percent
from snip.distributed.shards import check_split, local, part, whole_masks
from snip.distributed.wrapped import resharded, unwrap
from snip.masks import holding
from snip.masks.provenance import Provenance
from snip.network.layout import Packed, is_weight, split
from snip.network.network import Network
from snip.network.norms import normed_weights
from snip.network.parameters import Predicate, ordinary

FORMATS = "snip-masks-"  # every version of the format begins with this
FORMAT = f"{FORMATS}2"
ANEW = "put back a copy, or make the masks again and masks.save() them"

MIN_ZERO_SHARE = 0.1  # a model with fewer zeros was not pruned: some layers begin with zeros
MIN_CONNECTIONS = 8  # a layer is nearly empty with fewer, or with fewer per this many outputs


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
        """The origin of the masks."""
        return self._provenance

    def with_provenance(self, **changes: Any) -> Masks:
        """Return the same masks with some fields of their provenance changed."""
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
        return html_page(as_table(self))

    def digest(self) -> str:
        """Checksum of names, shapes and bits."""
        digest = hashlib.sha256()
        for name, mask in self.items():
            bits = np.packbits(mask.numpy())
            digest.update(f"{name}{tuple(mask.shape)}".encode() + bits.tobytes())
        return digest.hexdigest()[:16]

    def apply(self, model: nn.Module) -> None:
        """Zero the pruned weights and keep them zero through training.

        Masks that the model already holds are replaced where these name the same parameters. Masks
        that do not fit the model are refused, and nothing changes.
        """
        model = resharded(model)
        self.check_fit(model)
        changed = [
            normed
            for name, normed in normed_weights(model).items()
            if name in self and normed.stored.detach()[~self[name].to(normed.stored.device)].any()
        ]
        holding.hold(model, self._masks, self.provenance)
        for normed in changed:
            normed.renew()

    def check(self, model: nn.Module) -> None:
        """Raise if any pruned weight of `model` is not exactly zero."""
        self.check_fit(model)
        parameters = dict(unwrap(model).named_parameters())
        for name, mask in self.items():
            own = local(parameters[name])  # each rank checks its shard
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
        """Guess the masks of a model whose pruned weights are zero, to train or prune it further.

        An all-zero tensor may have been pruned away, or start at zero (a head, a bias) and not be
        trained yet. Taken for pruned it could never learn, so such a weight is kept whole and such
        a bias gets no mask.
        """
        chosen = Network.of(resharded(model), params).require_competing()
        nonzero = whole_masks({name: local(p) != 0 for name, p in chosen.items()}, chosen)
        unsure = set(all_zero(nonzero))
        masks = {
            name: torch.ones_like(mask) if name in unsure else mask
            for name, mask in nonzero.items()
            if name not in unsure or is_weight(mask.shape)
        }
        if not masks:
            raise InputError(
                f"{listed(list(nonzero))} are zero all over: which of them are pruned cannot be "
                "told. Load the masks (snip.Masks.load) and apply them."
            )
        return cls(masks, Provenance(method="from_zeros"))

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
        model = ordinary(model)
        parameters = dict(model.named_parameters())
        for name, mask in self.items():
            if name not in parameters:
                missing = nearest("parameter", name, parameters)
                raise InputError(f"these masks are of another model: {missing}")
            if parameters[name].shape != mask.shape:
                raise InputError(
                    f"these masks are of another model: {name!r} has shape "
                    f"{tuple(parameters[name].shape)} there and {tuple(mask.shape)} here."
                )
            check_split(name, parameters[name])
        for name, normed in normed_weights(model).items():
            if name in self:
                _check_lengths(name, normed.parts(self[name]))


def _check_lengths(name: str, parts: torch.Tensor) -> None:
    """Refuse to empty a part of a weight that is divided by its length: 0 / 0 is NaN."""
    empty = int((~parts.any(1)).sum()) if parts.numel() else 0
    if empty:
        raise InputError(
            f"{name!r} is divided by the length of each of its {len(parts):,} parts (weight norm "
            f"or spectral norm), and {empty:,} of them would keep no connection: the network would "
            "compute NaN. snip.prune keeps one in each if its sparsity and scope leave room for "
            "them: ask for a lower sparsity, leave this one out with params=..., or remove the "
            "norm first."
        )


def _check_path(path: object) -> None:
    if not isinstance(path, (str, os.PathLike)):
        raise KindError(f"the path of a mask file is {path!r}: give a string or a Path.")


def checksum(masks: Masks, header: Mapping[str, str]) -> str:
    """Checksum of masks and the other entries of their file's header: it covers every byte."""
    content = json.dumps([masks.digest(), dict(header)], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def held_masks(model: nn.Module) -> Masks | None:
    """Return the masks that a pruned model holds, or None."""
    held = holding.held(ordinary(model))
    return None if held is None else Masks(*held)


def release(model: nn.Module) -> None:
    """Stop holding the masks: the weights stay as they are and may grow again."""
    holding.release(ordinary(model))


def all_zero(tensors: Mapping[str, torch.Tensor]) -> list[str]:
    """Names of the tensors that are zero all over."""
    return [name for name, x in tensors.items() if x.numel() and not x.detach().any()]


def share_of_zeros(parameters: Mapping[str, torch.Tensor]) -> float:
    """Fraction of zeros; tensors that are zero all over do not count."""
    unsure = set(all_zero(parameters))
    sure = [p for name, p in parameters.items() if name not in unsure]
    total = sum(map(torch.numel, sure))
    return 1 - sum(int(p.count_nonzero()) for p in sure) / total if total else 0.0


def empty_layers(masks: Mapping[str, torch.Tensor], packed: Packed | None = None) -> list[str]:
    """Names of the weights that keep no connection. A layer works on without its bias.

    A weight that holds several layers (`packed_parts`) is named by its parts that keep none.
    """
    names: list[str] = []
    for name, mask in masks.items():
        if is_weight(mask.shape):
            parts = split({name: mask}, packed or {})
            # numpy stops at the first True.
            empty = [part for part, piece in parts.items() if not piece.cpu().numpy().any()]
            names += [name] if len(empty) == len(parts) else empty
    return names


def nearly_empty_layers(model: nn.Module, masks: Mapping[str, torch.Tensor]) -> list[str]:
    """Names of the weights that keep so little that a path may end there."""
    parameters = Network.of(model).parameters
    names: list[str] = []
    for name, mask in masks.items():
        if is_weight(mask.shape):
            outputs = parameters[name].layout.rows(mask.shape)
            few = max(MIN_CONNECTIONS, outputs // MIN_CONNECTIONS)
            names += [name] if int(mask.count_nonzero()) < min(mask.numel(), few) else []
    return names


def as_table(masks: Masks) -> str:
    """HTML table with bars: how many connections of each parameter are kept."""
    kept = [*(int(mask.count_nonzero()) for mask in masks.values()), masks.kept]
    totals = [*(mask.numel() for mask in masks.values()), masks.total]
    shares = [part / whole if whole else 0.0 for part, whole in zip(kept, totals, strict=True)]
    cells = {
        "parameter": [*masks, "total"],
        "kept": [f"{count:,}" for count in kept],
        "of": [f"{count:,}" for count in totals],
        "share": [percent(share) for share in shares],
    }
    kinds = ["" if count else "empty" for count in kept[:-1]]
    return html_table(cells, bars="share", fractions=shares, kinds=[*kinds, "total"])
