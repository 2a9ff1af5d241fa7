"""Cut layers down to some of their units; which connections go with each unit.

A plan of cuts is plain data and can be saved. A connection goes with the unit that it makes and
with the unit that it reads: it is there as long as both are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from snip.common.checks import check_kinds
from snip.common.errors import InputError
from snip.distributed.wrapped import unwrap
from snip.network.graph import UntraceableError, trace
from snip.network.layout import layout_of
from snip.network.unit_rules import follow
from snip.network.units import Layer
from snip.network.untouched import undisturbed

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
    """Units of one layer that stay, on each side."""

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
        """Join this cut with the one before it, by indices of the original."""
        inputs = _composed(earlier.inputs, self.inputs)
        outputs = _composed(earlier.outputs, self.outputs)
        return Cut(inputs, outputs, earlier.new_bias or self.new_bias)


Plan = dict[str, Cut]  # by module name


def plan_as_json(plan: Plan) -> dict[str, Any]:
    """Return a plan in types that JSON has."""
    return {name: [cut.inputs, cut.outputs, cut.new_bias] for name, cut in plan.items()}


def plan_from_json(data: Mapping[str, Any]) -> Plan:
    """Return the plan that `plan_as_json` took apart; `Cut` refuses anything else."""
    return {
        name: Cut(_units(inputs), _units(outputs), new_bias)
        for name, (inputs, outputs, new_bias) in data.items()
    }


def _units(data: Any) -> Any:
    return tuple(data) if isinstance(data, list) else data


def widths(module: Any) -> tuple[int, int]:
    """Numbers of units that a layer reads and makes."""
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
    """Cut tensors, such as masks, by the names of parameters. `model` is not cut yet."""
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
    """Arrange what belongs to the units that a layer makes and reads by its tensor's dimensions.

    None stands for a dimension that no unit decides about.
    """
    layout = layout_of(module, key, tensor.ndim)
    if key.startswith("weight_hh"):  # a recurrent layer reads its own units
        inputs = outputs
    if layout.groups > 1:
        inputs = None  # a group's inputs go with the group
    if outputs is not None and layout.parts:
        outputs = outputs.repeat(len(layout.parts))
    # A number (num_batches_tracked) has no dimension to cut, and a bias has one.
    return [inputs, outputs] if layout.makes else [outputs, inputs][: tensor.ndim]


def _sliced(module: Any, key: str, tensor: Tensor, layer_cut: Cut) -> Tensor:
    """Cut a tensor of a layer, or its mask."""
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


@dataclass(frozen=True, eq=False)
class CoupledUnits:
    """Units of a network by number; those that only go together have one number."""

    fixed: Tensor  # bool [units]: stays, because an output or an unknown operation reads it
    layers: Mapping[str, Tensor]  # of each layer that makes units, their numbers
    # Of each parameter, the number of the unit that decides about each index of a dimension; None
    # for a dimension about which none does.
    places: Mapping[str, tuple[Tensor | None, ...]]

    def mask(self, name: str, shape: torch.Size, stays: Tensor) -> Tensor:
        """True for the connections of a parameter whose units all stay."""
        mask = torch.ones(shape, dtype=torch.bool)
        for dim, units in enumerate(self.places.get(name, ())):
            if units is not None:
                mask &= stays[units].view(-1, *[1] * (len(shape) - dim - 1))
        return mask

    def spaces(self) -> Tensor:
        """Number the units; those of layers that have a unit in common get the same number."""
        numbers, before = torch.arange(len(self.fixed)), torch.empty(0)
        while not torch.equal(numbers, before):
            before = numbers.clone()
            for units in self.layers.values():
                numbers[units] = numbers[units].min()
        return numbers

    def decide(self, name: str) -> bool:
        """Return True if a unit that may go decides about any connection of a parameter."""
        places = self.places.get(name, ())
        return any(units is not None and not bool(self.fixed[units].all()) for units in places)

    def sums(self, numbers: Mapping[str, Tensor]) -> Tensor:
        """Sum the numbers of all connections that go with each unit, in double precision."""
        total = torch.zeros(len(self.fixed), dtype=torch.float64)
        for name, tensor in numbers.items():
            for dim, units in enumerate(self.places.get(name, ())):
                if units is not None:
                    rows = tensor.movedim(dim, 0).flatten(1) if tensor.ndim > 1 else tensor[:, None]
                    total.index_add_(0, units, rows.sum(1, dtype=torch.float64).cpu())
        return total


def coupled_units(model: nn.Module, inputs: Any) -> CoupledUnits:
    """Find the units of `model`, called on `inputs`; the model is left as found."""
    model = unwrap(model)
    with undisturbed(model), torch.inference_mode(False):
        try:
            traced = trace(model.eval(), inputs)
        except UntraceableError as error:
            raise InputError(
                f"granularity 'channel' must know which layer reads which units, and torch.fx "
                f"cannot follow the forward of {type(model).__name__} ({error}): take decisions "
                "that depend on data out of it, or use another granularity."
            ) from error
        ledger = follow(model, traced, {}, zeros_may_grow=True)

    roots, numbers = torch.unique(ledger.roots(), return_inverse=True)
    fixed = torch.zeros(len(roots), dtype=torch.bool)
    fixed[numbers[list(ledger.pinned)]] = True
    layers = {x.name: numbers[x.result.units].unique() for x in ledger.layers if x.makes_units}
    places = {}
    for layer in ledger.layers:
        for key, parameter in layer.module.named_parameters(recurse=False):
            places[f"{layer.name}.{key}"] = _places(layer, key, parameter, numbers)
    return CoupledUnits(fixed, layers, places)


def _places(
    layer: Layer, key: str, parameter: Tensor, numbers: Tensor
) -> tuple[Tensor | None, ...]:
    makes = numbers[layer.result.units]
    reads = None if layer.source is None else numbers[layer.source.units]
    return tuple(laid_out(layer.module, key, parameter, makes, reads))
