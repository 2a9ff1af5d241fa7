"""Cut layers down to the units that stay. A plan of cuts is plain data and can be saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from snip.common.checks import check_kinds
from snip.common.errors import InputError
from snip.export.shrink.constants import add_bias

Tensor = torch.Tensor
Indices = tuple[int, ...]


@dataclass(frozen=True)
class Cut:
    """What stays of one layer: unit indices on each side, None where all stay."""

    inputs: Indices | None = None
    outputs: Indices | None = None
    new_bias: bool = False  # the layer had none, and constants were folded into one

    def __post_init__(self) -> None:
        check_kinds(self, "a cut")
        for side in (self.inputs, self.outputs):
            # Rising, so that a layer never grows: a file could name one unit a million times.
            if side is not None and any(a >= b for a, b in pairwise(side)):
                raise InputError("the units of a cut are not in rising order, each of them once.")

    def after(self, earlier: Cut) -> Cut:
        """This cut and the one before it as one, by indices of the original."""
        return Cut(
            _composed(earlier.inputs, self.inputs),
            _composed(earlier.outputs, self.outputs),
            earlier.new_bias or self.new_bias,
        )


Plan = dict[str, Cut]  # by module name

# The layers that are cut, and where each keeps how many units it reads and makes.
SIZES: tuple[tuple[type, str, str], ...] = (
    (nn.Linear, "in_features", "out_features"),
    (_ConvNd, "in_channels", "out_channels"),
    (_BatchNorm, "num_features", "num_features"),
    (nn.RNNBase, "input_size", "hidden_size"),
)


def widths(module: nn.Module) -> tuple[int, int]:
    """How many units a layer reads and makes."""
    inputs, outputs = _size_names(module)
    return getattr(module, inputs), getattr(module, outputs)


def cut(model: nn.Module, plan: Mapping[str, Cut]) -> None:
    """Replace the tensors of the planned layers by smaller ones, in place."""
    for name, layer_cut in plan.items():
        module: Any = model.get_submodule(name)
        if layer_cut.new_bias and module.bias is None:
            add_bias(module)
        for key, old in [*module.named_parameters(recurse=False)]:
            made = sliced(module, key, old.detach(), layer_cut).clone()
            # setattr, so that a recurrent layer notes the new tensor in its own list too.
            setattr(module, key, nn.Parameter(made, requires_grad=old.requires_grad))
        for key, buffer in [*module.named_buffers(recurse=False)]:
            module._buffers[key] = sliced(module, key, buffer, layer_cut).clone()
        _rename_sizes(module, layer_cut)


def sliced(module: nn.Module, key: str, tensor: Tensor, layer_cut: Cut) -> Tensor:
    """A layer's tensor, or its mask, without the units that go."""
    for dim, indices in _sides(module, key, tensor, layer_cut):
        tensor = tensor.index_select(dim, torch.tensor(indices, device=tensor.device))
    return tensor


def check_plan(model: nn.Module, plan: Mapping[str, Cut]) -> None:
    """Raise unless every layer of the plan is there, with at least as many units."""
    other = "this is another model than the one that was shrunk."
    for name, layer_cut in plan.items():
        try:
            module = model.get_submodule(name)
        except AttributeError as error:
            raise InputError(f"there is no layer {name!r}: {other}") from error
        if not isinstance(module, tuple(kind for kind, _, _ in SIZES)):
            raise InputError(f"{name!r} is a {type(module).__name__}, which is never shrunk.")
        for side, width in zip((layer_cut.inputs, layer_cut.outputs), widths(module), strict=True):
            if side is not None and (not side or min(side) < 0 or max(side) >= width):
                raise InputError(
                    f"the layer {name!r} has {width} units, and unit {max(side, default=0)} was "
                    f"kept of it: {other}"
                )


def _sides(module: Any, key: str, tensor: Tensor, layer_cut: Cut) -> Iterator[tuple[int, Indices]]:
    """Which dimension of a tensor loses which side's units."""
    if tensor.ndim == 0:  # num_batches_tracked
        return
    first, second = layer_cut.outputs, layer_cut.inputs
    if isinstance(module, nn.RNNBase):
        second = first if key.startswith("weight_hh") else second
        gates = range(0, len(tensor), module.hidden_size)
        first = None if first is None else tuple(gate + unit for gate in gates for unit in first)
    elif isinstance(module, _ConvTransposeNd) and tensor.ndim > 1:
        first, second = second, first
    elif getattr(module, "groups", 1) > 1:
        second = None  # a group's inputs go with the group
    if first is not None:
        yield 0, first
    if tensor.ndim > 1 and second is not None:
        yield 1, second


def _size_names(module: nn.Module) -> tuple[str, str]:
    return next((i, o) for kind, i, o in SIZES if isinstance(module, kind))


def _rename_sizes(module: Any, layer_cut: Cut) -> None:
    """Correct the sizes that a layer tells of itself."""
    before = widths(module)[1]
    for name, kept in zip(_size_names(module), (layer_cut.inputs, layer_cut.outputs), strict=True):
        if kept is not None:
            setattr(module, name, len(kept))
    if getattr(module, "groups", 1) > 1:
        module.groups = module.groups * module.out_channels // before
    if isinstance(module, nn.RNNBase):
        module.flatten_parameters()


def _composed(earlier: Indices | None, later: Indices | None) -> Indices | None:
    if earlier is None or later is None:
        return later if earlier is None else earlier
    return tuple(earlier[i] for i in later)
