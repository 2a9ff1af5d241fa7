"""The compact file: only surviving weights, their positions in a few bits each.

A safetensors file, so nothing in it can run code: a sparse tensor is two entries, its values and
its packed gaps; everything else is as it is in a state_dict. A shrunk model's file also says
which units were kept, and is loaded into the original, which is shrunk on the way.
"""

from __future__ import annotations

import json
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import nn

from snip.common.errors import FileError, InputError, KindError
from snip.common.files import parsed_json, reading, write_tensors
from snip.common.places import PathLike
from snip.common.text import shown
from snip.distributed.models import require_whole
from snip.distributed.wrappers import unwrap
from snip.export.compact.parts import (
    FEWER_BITS,
    GAPS,
    Part,
    Tensors,
    model_tensors,
    put_together,
    take_apart,
)
from snip.export.shrink import note_shrunk, shrink_plan
from snip.masks import Masks, Provenance, holding
from snip.network.calls import copy_of
from snip.network.cuts import Plan, check_plan, cut, plan_as_json, plan_from_json
from snip.network.parameters import ordinary

__all__ = ["Sizes", "load", "save", "sizes"]

FORMAT = "snip-compact-2"
ANEW = "copy it anew, or save the model again"


@dataclass(frozen=True)
class Sizes:
    """Bytes of two files of the same model."""

    dense: int
    compact: int

    @property
    def ratio(self) -> float:
        """How many times smaller the compact file is."""
        return self.dense / self.compact


def save(model: nn.Module, path: PathLike, *, dtype: torch.dtype | None = None) -> None:
    """Write the surviving weights of `model`; `dtype` float16 or bfloat16 halves their values."""
    if dtype is not None and dtype not in FEWER_BITS:
        raise KindError(f"values cannot be written as {dtype}: use torch.float16 or bfloat16.")
    require_whole(model, "snip.compact.save")
    model = ordinary(model)
    masks, provenance = holding.held(model) or ({}, Provenance())
    parameters = {name for name, _ in model.named_parameters()}
    tensors: Tensors = {}
    layout = {}
    for name, tensor in model_tensors(model):
        fewer = dtype if name in parameters else None  # running statistics keep all their bits
        part, values, packed = take_apart(tensor, masks.get(name), fewer)
        layout[name] = part.as_json()
        tensors[name] = values.contiguous()
        if packed is not None:
            tensors[name + GAPS] = packed
    plan = shrink_plan(model)
    header = {
        "format": FORMAT,
        "layout": json.dumps(layout),
        "provenance": json.dumps(provenance.to_dict(), sort_keys=True),
        "plan": json.dumps(plan_as_json(plan) if plan is not None else None),
    }
    header["checksum"] = checksum(header, tensors)
    write_tensors(path, tensors, header)


def load(path: PathLike, model: nn.Module) -> nn.Module:
    """A copy of `model` with the weights, masks and units of the file; `model` stays as it is."""
    layout, plan, provenance, tensors = _read(Path(path))
    result = _shaped(path, copy_of(unwrap(model)), plan)
    own = dict(model_tensors(result))
    # Parts have the sizes of the model from here on, so that no file can ask for more memory.
    _check_fit(path, own, layout)
    masks = {}
    for name, part in layout.items():
        with reading(path, fix=ANEW):
            tensor, mask = put_together(part, tensors[name], tensors.get(name + GAPS))
        with torch.no_grad():
            own[name].copy_(tensor)
        if mask is not None:
            masks[name] = mask
    if masks:
        Masks(masks, provenance).apply(result)
    return result


def sizes(model: nn.Module, *, dtype: torch.dtype | None = None) -> Sizes:
    """Bytes of the model as a dense safetensors file and as a compact one, both really written."""
    require_whole(model, "snip.compact.sizes")
    with tempfile.TemporaryDirectory() as folder:
        dense, compact = Path(folder, "dense"), Path(folder, "compact")
        whole = {n: t.detach().contiguous() for n, t in model_tensors(unwrap(model))}
        write_tensors(dense, whole, {})
        save(model, compact, dtype=dtype)
        return Sizes(dense.stat().st_size, compact.stat().st_size)


def _read(path: Path) -> tuple[dict[str, Part], Plan | None, Provenance, Tensors]:
    with reading(path, what="compact file", fix=ANEW):
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            if header.get("format") != FORMAT:
                raise FileError(
                    f"{path} is a safetensors file, but no compact model: it has no header "
                    f"{FORMAT!r}. Give a file that snip.compact.save() wrote."
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if header.pop("checksum") != checksum(header, tensors):
            raise ValueError("its checksum is wrong")
        layout = {name: Part(**part) for name, part in parsed_json(header["layout"]).items()}
        gaps = {name + GAPS for name, part in layout.items() if part.width is not None}
        if tensors.keys() != layout.keys() | gaps:
            raise ValueError("its entries are not those that its header names")
        data = parsed_json(header["plan"])
        plan = None if data is None else plan_from_json(data)
        provenance = Provenance.from_dict(parsed_json(header["provenance"]))
        return layout, plan, provenance, tensors


def _shaped(path: PathLike, model: nn.Module, plan: Plan | None) -> nn.Module:
    """Shrink the model to the units that the file has."""
    holding.release(model)
    earlier = shrink_plan(model)
    if plan is None and earlier is None:
        return model
    if plan is None or (earlier is not None and earlier != plan):
        raise InputError(
            "this model was shrunk in another way than the one in the file: "
            "load into the original model, as it was before shrinking."
        )
    if earlier is None:
        check_plan(model, plan)
        with reading(path, fix=ANEW):
            cut(model, plan)
        note_shrunk(model, plan)
    return model


def _check_fit(path: PathLike, own: Tensors, layout: dict[str, Part]) -> None:
    missing = next((name for name in own if name not in layout), None)
    extra = next((name for name in layout if name not in own), None)
    if missing is not None or extra is not None:
        raise InputError(
            f"{path} is of another model: "
            + (f"it has no {missing!r}." if missing else f"this one has no {shown(extra)}.")
        )
    for name, part in layout.items():
        here = list(own[name].shape), str(own[name].dtype).removeprefix("torch.")
        if here != (part.shape, part.dtype):
            raise InputError(
                f"{path} is of another model: {name!r} is {part.dtype} {tuple(part.shape)} there "
                f"and {here[1]} {tuple(here[0])} here."
            )


def checksum(header: dict[str, str], tensors: Tensors) -> str:
    """Over the header's other entries, and over the names, kinds and bytes of the tensors."""
    # The same bytes are other numbers in another type.
    kinds = {name: [str(value.dtype), list(value.shape)] for name, value in tensors.items()}
    total = zlib.crc32(json.dumps([header, kinds], sort_keys=True).encode())
    for name in sorted(tensors):
        flat = tensors[name].contiguous().reshape(-1).view(torch.uint8)
        total = zlib.crc32(flat.numpy().data, total)
    return f"{total:08x}"
