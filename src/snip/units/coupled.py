"""Which connections go with each unit of a network, and which units only go together.

A connection goes with the unit that it makes and with the unit that it reads: it is there as long
as both are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from snip.common.errors import InputError
from snip.distributed.wrappers import unwrap
from snip.network.graph import UntraceableError, trace
from snip.network.untouched import undisturbed
from snip.units.follow import follow
from snip.units.ledger import Layer, Ledger
from snip.units.surgery import laid_out

Tensor = torch.Tensor


@dataclass(frozen=True, eq=False)
class CoupledUnits:
    """The units of a network by number; those that only go together have one number."""

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
        """A number for each unit; those of layers that have a unit in common get the same one."""
        numbers, before = torch.arange(len(self.fixed)), torch.empty(0)
        while not torch.equal(numbers, before):
            before = numbers.clone()
            for units in self.layers.values():
                numbers[units] = numbers[units].min()
        return numbers

    def decide(self, name: str) -> bool:
        """Whether a unit that may go decides about any connection of a parameter."""
        places = self.places.get(name, ())
        return any(units is not None and not bool(self.fixed[units].all()) for units in places)

    def sums(self, numbers: Mapping[str, Tensor]) -> Tensor:
        """The sum of the numbers of all connections that go with each unit, in double precision."""
        total = torch.zeros(len(self.fixed), dtype=torch.float64)
        for name, tensor in numbers.items():
            for dim, units in enumerate(self.places.get(name, ())):
                if units is not None:
                    rows = tensor.movedim(dim, 0).flatten(1) if tensor.ndim > 1 else tensor[:, None]
                    total.index_add_(0, units, rows.sum(1, dtype=torch.float64).cpu())
        return total


def coupled_units(model: nn.Module, inputs: Any) -> CoupledUnits:
    """The units of `model`, called on `inputs` as `snip.shrink` calls it; it is left as found."""
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
        return _coupled(follow(model, traced, {}, strict=True))


def _coupled(ledger: Ledger) -> CoupledUnits:
    """The units of a run that was followed, numbered from zero."""
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
