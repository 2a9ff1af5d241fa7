"""The compact file: only surviving weights, their positions in a few bits each.

A safetensors file, so nothing in it can run code: a sparse tensor is two entries, its values and
its packed gaps; everything else is as it is in a state_dict. A shrunk model's file also says
which units were kept, and is loaded into the original, which is shrunk on the way.
"""

from __future__ import annotations

import json
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import safe_open
from torch import nn

from snip.common.checks import check_kinds
from snip.common.errors import FileError, InputError, KindError
from snip.common.files import PathLike, parsed_json, reading, write_tensors
from snip.common.text import shown
from snip.distributed.wrapped import require_whole, unwrap
from snip.export.shrink import note_shrunk, shrink_plan
from snip.masks import Masks, Provenance, holding
from snip.network.calls import copy_of
from snip.network.cuts import Plan, check_plan, cut, plan_as_json, plan_from_json
from snip.network.parameters import ordinary

__all__ = ["Sizes", "load", "save", "sizes"]

Tensor = torch.Tensor
Tensors = dict[str, Tensor]
Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

FORMAT = "snip-compact-2"
ANEW = "copy it anew, or save the model again"
GAPS = "|gaps"  # beside a sparse tensor's values
FEWER_BITS = (torch.float16, torch.bfloat16)  # as which a file may hold the values of parameters
MOST_DIMENSIONS = 64  # of a tensor, as in torch
HEADER_BYTES = 128  # that one more entry costs in the header
GAP_BITS = range(1, 17)


@dataclass(frozen=True)
class Sizes:
    """Bytes of two files of the same model."""

    dense: int
    compact: int

    @property
    def ratio(self) -> float:
        """Factor by which the compact file is smaller."""
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
    """Return a copy of `model` with the weights, masks and units of the file."""
    with torch.inference_mode(False):  # the copy may be trained later
        return _loaded(path, model)


def sizes(model: nn.Module, *, dtype: torch.dtype | None = None) -> Sizes:
    """Write the model as a dense safetensors file and as a compact one; return their bytes."""
    require_whole(model, "snip.compact.sizes")
    with tempfile.TemporaryDirectory() as folder:
        dense, compact = Path(folder, "dense"), Path(folder, "compact")
        whole = {n: t.detach().contiguous() for n, t in model_tensors(unwrap(model))}
        write_tensors(dense, whole, {})
        save(model, compact, dtype=dtype)
        return Sizes(dense.stat().st_size, compact.stat().st_size)


def _loaded(path: PathLike, model: nn.Module) -> nn.Module:
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
    """Checksum of the header's other entries and of the tensors' names, types and bytes."""
    # The same bytes are other numbers in another type.
    kinds = {name: [str(value.dtype), list(value.shape)] for name, value in tensors.items()}
    total = zlib.crc32(json.dumps([header, kinds], sort_keys=True).encode())
    for name in sorted(tensors):
        flat = tensors[name].contiguous().reshape(-1).view(torch.uint8)
        total = zlib.crc32(flat.numpy().data, total)
    return f"{total:08x}"


# ---- one tensor: dense, or values and gaps ----


@dataclass(frozen=True)
class Part:
    """Description of one tensor of the model in the file."""

    shape: list[int]
    dtype: str  # in the model; the file may hold fewer bits
    kept: int | None = None  # values in the file; None if it is dense
    width: int | None = None  # bits per gap; None if nothing is left out
    held: bool = False  # whether the positions are a mask that the model holds

    def __post_init__(self) -> None:
        check_kinds(self, "a part")
        # Before anything is multiplied: the product of a million sizes takes hours.
        if len(self.shape) > MOST_DIMENSIONS or any(size < 0 for size in self.shape):
            raise InputError(f"shape of a part is {shown(self.shape)}: it is no shape.")
        if not isinstance(getattr(torch, self.dtype, None), torch.dtype):
            raise InputError(f"dtype of a part is {shown(self.dtype)}: torch has no such type.")
        if self.kept is None and (self.width is not None or self.held):
            raise InputError("a dense part has neither gaps nor a mask.")
        if self.width is None and self.kept not in (None, self.total):
            raise InputError(f"{self.kept} of {self.total} values of a part need gaps.")

    @property
    def total(self) -> int:
        """Number of values in the model."""
        return prod(self.shape)

    def as_json(self) -> dict[str, Any]:
        """Return the fields that are set."""
        every = asdict(self).items()
        return {key: value for key, value in every if value is not None and value is not False}

    def check_entries(self, values: Tensor | None, packed: Tensor | None) -> None:
        """Refuse entries of a file that are not what this part says, before anything is made."""
        if values is None or (packed is None) != (self.width is None):
            raise ValueError("the entries of a part are not those that its header names")
        shape = self.shape if self.kept is None else [self.kept]
        dtype = getattr(torch, self.dtype)
        lower = dtype.is_floating_point and values.dtype in FEWER_BITS
        if list(values.shape) != shape or not (values.dtype == dtype or lower):
            raise ValueError(f"{values.dtype} {list(values.shape)} in place of {shape}")
        # Gaps never take more room than a bitmap, whose fields have one bit.
        if packed is not None and (
            packed.dtype != torch.uint8 or packed.ndim != 1 or len(packed) > (self.total + 7) // 8
        ):
            raise ValueError(f"{packed.dtype} {list(packed.shape)} are no gaps of {self.total}")


def take_apart(
    tensor: Tensor, mask: Tensor | None, dtype: torch.dtype | None
) -> tuple[Part, Tensor, Tensor | None]:
    """Split a tensor into the description of its part, its values and its packed gaps."""
    shape, kind = list(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    values = flat if dtype is None or not flat.is_floating_point() else lowered(flat, dtype)
    keep = _not_zero(flat) if mask is None else mask.reshape(-1)
    kept = int(keep.sum())
    if kept == len(flat) and mask is not None:
        return Part(shape, kind, kept, held=True), values, None
    packed, width = encode_gaps(np.flatnonzero(keep.numpy()))
    saved = (len(flat) - kept) * values.element_size() - len(packed)
    if mask is None and saved <= HEADER_BYTES:
        return Part(shape, kind), values.reshape(shape), None
    part = Part(shape, kind, kept, width, held=mask is not None)
    return part, values[keep], torch.from_numpy(packed)


def put_together(part: Part, values: Tensor, packed: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return the tensor that was taken apart, and its mask if one was held."""
    part.check_entries(values, packed)
    dtype = getattr(torch, part.dtype)
    if part.kept is None:
        return values.to(dtype), None
    keep = torch.ones(part.total, dtype=torch.bool)
    if part.width is not None and packed is not None:
        positions = decode_gaps(packed.numpy(), part.width, part.kept, part.total)
        keep[:] = False
        keep[torch.from_numpy(positions)] = True
    flat = torch.zeros(part.total, dtype=dtype)
    flat[keep] = values.to(dtype)
    return flat.reshape(part.shape), keep.reshape(part.shape) if part.held else None


def model_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters, a tied one once, and the buffers that a state_dict has."""
    state: Mapping[str, Any] = model.state_dict()
    other = next((name for name, value in state.items() if not isinstance(value, Tensor)), None)
    if other is not None:
        raise InputError(f"{other!r} of this model's state is no tensor: save it beside.")
    yield from model.named_parameters()
    yield from ((name, buffer) for name, buffer in model.named_buffers() if name in state)


def lowered(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the values in fewer bits; raise if one of them would become infinite."""
    result = values.to(dtype)
    if bool((result.isinf() & values.isfinite()).any()):
        raise InputError(
            f"a weight of {float(values.abs().max()):.3g} is too large for {dtype}: "
            "use torch.bfloat16, or leave dtype out."
        )
    return result


def _not_zero(flat: Tensor) -> Tensor:
    """True where any bit is set. -0.0 has its sign bit set and is kept, so that nothing is lost."""
    return flat.view(torch.uint8).reshape(len(flat), flat.element_size()).bool().any(1)


# ---- positions in few bits: the gaps between them, packed ----
#
# Each gap is a field of `width` bits; a field of ones says "this many, and go on". With one bit per
# field that is a bitmap; wider fields pay where little survives. The best width is chosen by size.


def encode_gaps(positions: Ints) -> tuple[Bytes, int]:
    """Sorted positions -> packed gaps and the width of their fields."""
    gaps = np.diff(positions, prepend=-1) - 1
    width = min(GAP_BITS, key=lambda bits: _fields(gaps, bits) * bits)
    more = (1 << width) - 1
    skips, rest = np.divmod(gaps, more)
    ends = np.cumsum(skips + 1) - 1
    fields = np.full(_fields(gaps, width), more, dtype=np.uint16)
    fields[ends] = rest
    bits = (fields[:, None] >> np.arange(width, dtype=np.uint16)) & 1
    return np.packbits(bits.astype(np.uint8)), width


def decode_gaps(packed: Bytes, width: int, kept: int, total: int) -> Ints:
    """The `kept` positions below `total`; ValueError if the bytes say anything else."""
    if width not in GAP_BITS or not 0 <= kept <= total:
        raise ValueError(f"no {kept} of {total} positions in fields of {width} bits")
    bits = np.unpackbits(packed)
    fields = bits[: len(bits) // width * width].reshape(-1, width) @ (1 << np.arange(width))
    more = (1 << width) - 1
    last = fields != more
    positions = (np.cumsum(np.where(last, fields + 1, more)) - 1)[last][:kept]
    if len(positions) != kept or (kept and positions[-1] >= total):
        raise ValueError(f"the packed positions are not {kept} of {total}")
    return positions


def _fields(gaps: Ints, width: int) -> int:
    """Number of fields that the gaps take."""
    return len(gaps) + int((gaps // ((1 << width) - 1)).sum())
