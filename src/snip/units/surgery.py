"""Cut layers down to the units that stay. A plan of cuts is plain data and can be saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from snip.common.checks import check_kinds
from snip.common.errors import InputError

Tensor = torch.Tensor
Indices = tuple[int, ...] | None  # of units that stay; None where all do

# The layers that are cut, and where each keeps how many units it reads and makes.
SIZES: dict[type, tuple[str, str]] = {
    nn.Linear: ("in_features", "out_features"),
    _ConvNd: ("in_channels", "out_channels"),
    _BatchNorm: ("num_features", "num_features"),
    nn.RNNBase: ("input_size", "hidden_size"),
}


@dataclass(frozen=True)
class Cut:
    """What stays of one layer, on each side."""

    inputs: Indices = None
    outputs: Indices = None
    new_bias: bool = False  # the layer had none, and constants were folded into one

    def __post_init__(self) -> None:
        check_kinds(self, "a cut")
        for side in (self.inputs, self.outputs):
            # Rising, so that a layer never grows: a file could name one unit a million times.
            if side is not None and any(a >= b for a, b in pairwise(side)):
                raise InputError("the units of a cut are not in rising order, each of them once.")

    def after(self, earlier: Cut) -> Cut:
        """This cut and the one before it as one, by indices of the original."""
        inputs = _composed(earlier.inputs, self.inputs)
        outputs = _composed(earlier.outputs, self.outputs)
        return Cut(inputs, outputs, earlier.new_bias or self.new_bias)


Plan = dict[str, Cut]  # by module name


def widths(module: Any) -> tuple[int, int]:
    """How many units a layer reads and makes."""
    inputs, outputs = _size_names(module)
    return getattr(module, inputs), getattr(module, outputs)


def cut(model: nn.Module, plan: Mapping[str, Cut]) -> None:
    """Replace the tensors of the planned layers by smaller ones, in place."""
    for name, layer_cut in plan.items():
        module: Any = model.get_submodule(name)
        width = widths(module)[1]
        if layer_cut.new_bias and module.bias is None:
            zeros = module.weight.new_zeros(width)
            module.bias = nn.Parameter(zeros, requires_grad=module.weight.requires_grad)
        for key, old in [*module.named_parameters(recurse=False)]:
            made = _sliced(module, key, old.detach(), layer_cut).clone()
            # setattr, so that a recurrent layer notes the new tensor in its own list too.
            setattr(module, key, nn.Parameter(made, requires_grad=old.requires_grad))
        for key, buffer in [*module.named_buffers(recurse=False)]:
            module._buffers[key] = _sliced(module, key, buffer, layer_cut).clone()
        for size, kept in zip(
            _size_names(module), (layer_cut.inputs, layer_cut.outputs), strict=True
        ):
            setattr(module, size, getattr(module, size) if kept is None else len(kept))
        if getattr(module, "groups", 1) > 1:
            module.groups = module.groups * module.out_channels // width
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()


def cut_tensors(
    model: nn.Module, plan: Mapping[str, Cut], tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Masks, say, by the names of parameters: without the units that go. `model` is not cut yet."""
    result = {}
    for name, tensor in tensors.items():
        owner, _, key = name.rpartition(".")
        result[name] = tensor
        if owner in plan:
            result[name] = _sliced(model.get_submodule(owner), key, tensor, plan[owner])
    return result


def check_plan(model: nn.Module, plan: Mapping[str, Cut]) -> None:
    """Raise unless every layer of the plan is there, with at least as many units."""
    other = "this is another model than the one that was shrunk."
    for name, layer_cut in plan.items():
        try:
            module = model.get_submodule(name)
        except AttributeError as error:
            raise InputError(f"there is no layer {name!r}: {other}") from error
        if not isinstance(module, tuple(SIZES)):
            raise InputError(f"{name!r} is a {type(module).__name__}, which is never shrunk.")
        for side, width in zip((layer_cut.inputs, layer_cut.outputs), widths(module), strict=True):
            if side is not None and (not side or min(side) < 0 or max(side) >= width):
                raise InputError(
                    f"the layer {name!r} has {width} units, and unit {max(side, default=0)} was "
                    f"kept of it: {other}"
                )


def laid_out(
    module: Any, key: str, tensor: Tensor, outputs: Tensor | None, inputs: Tensor | None
) -> list[Tensor | None]:
    """Entries per unit that a layer makes and reads, as entries per index of its tensor's
    dimensions; None for a dimension that no unit decides about."""
    first, second = outputs, inputs
    if isinstance(module, nn.RNNBase):
        second = first if key.startswith("weight_hh") else second
        first = None if first is None else first.repeat(len(tensor) // module.hidden_size)
    elif isinstance(module, _ConvTransposeNd) and tensor.ndim > 1:
        first, second = second, first
    elif getattr(module, "groups", 1) > 1:
        second = None  # a group's inputs go with the group
    # A number (num_batches_tracked) has no dimension to cut, and a bias has one.
    return [first, second][: tensor.ndim]


def _sliced(module: Any, key: str, tensor: Tensor, layer_cut: Cut) -> Tensor:
    """A layer's tensor, or its mask, without the units that go."""
    reads, makes = widths(module)
    sides = _stays(layer_cut.outputs, makes), _stays(layer_cut.inputs, reads)
    for dim, stays in enumerate(laid_out(module, key, tensor, *sides)):
        if stays is not None:
            tensor = tensor.index_select(dim, torch.nonzero(stays).flatten().to(tensor.device))
    return tensor


def _stays(kept: Indices, width: int) -> Tensor | None:
    """True for each unit that stays; None where all do."""
    if kept is None:
        return None
    return torch.zeros(width).bool().index_fill_(0, torch.tensor(kept), True)


def _size_names(module: nn.Module) -> tuple[str, str]:
    return next(names for kind, names in SIZES.items() if isinstance(module, kind))


def _composed(earlier: Indices, later: Indices) -> Indices:
    if earlier is None or later is None:
        return later if earlier is None else earlier
    return tuple(earlier[i] for i in later)
