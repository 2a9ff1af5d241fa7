"""Rules of the layers that are cut: linear, convolution, batch norm."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.conv import _ConvTransposeNd

from snip.export.shrink.flow import Flow, along, live_flow
from snip.export.shrink.ledger import Layer, Reader, Step

Tensor = torch.Tensor


def weighted(step: Step) -> Flow | None:
    """Linear layers and convolutions: a unit reads all units before it, or those of its group."""
    module, ledger = step.module, step.ledger
    transposed, groups = isinstance(module, _ConvTransposeNd), getattr(module, "groups", 1)
    axis = step.out.ndim - 1 - len(getattr(module, "kernel_size", ()))
    source = source_along(step, axis)
    if groups > 1 and (transposed or source is None):
        return None
    live = _connections(ledger.live(f"{step.name}.weight", module.weight), groups, transposed)
    # A transposed convolution makes a pattern of a constant: only zeros are the same everywhere.
    padded = transposed or _pads_with_zeros(module)
    read = source or live_flow(torch.zeros(live.shape[1], dtype=torch.long), axis)
    result = _result(step, axis, live, read, padded=padded)
    ledger.layers.append(Layer(step.name, module, source, result))
    if groups > 1:  # a group goes or stays as a whole
        for units in torch.cat([read.units.view(groups, -1), result.units.view(groups, -1)], 1):
            ledger.units.unite(units[:1].expand(len(units) - 1), units[1:])
    elif source is not None:
        foldable = source.zero if padded else source.even
        refusal = "pads with zeros, so that a constant differs at the border"
        ledger.readers.append(
            Reader(step.name, source, result.units, live, foldable, result.constant, refusal)
        )
    return result


def batch_norm(step: Step) -> Flow | None:
    """Passes each channel on by itself."""
    flow, module = step.flow_of(step.input), step.module
    if flow is None or flow.axis != 1:
        return None
    mean = module.running_mean
    unmoved = flow.zero if mean is None else flow.zero & (mean == 0).cpu()
    trains = step.ledger.trains(f"{step.name}.bias", module.bias)
    # In train mode a constant becomes beta, in eval mode only if the running mean has met it.
    result = flow.through(step.out, settled=flow.settled & unmoved, blocked=flow.blocked & ~trains)
    step.ledger.layers.append(Layer(step.name, module, None, result))
    return result


def source_along(step: Step, axis: int) -> Flow | None:
    """What flows into a layer along the dimension it reads; units along another are kept."""
    source = step.flow_of(step.input)
    if source is not None and source.axis != axis:
        step.keep_all()
        return None
    return source


def all_read(live: Tensor, flag: Tensor) -> Tensor:
    """Per row: whether everything it reads has the flag (nothing read: True)."""
    return ~(live & ~flag).any(1)


def _connections(live: Tensor, groups: int, transposed: bool) -> Tensor:
    """Which unit [row] reads which [column], of a weight of any shape."""
    live = live.flatten(2).any(2) if live.ndim > 2 else live
    live = live.t() if transposed else live
    return torch.block_diag(*live.chunk(groups)) if groups > 1 else live


def _result(step: Step, axis: int, live: Tensor, source: Flow, *, padded: bool) -> Flow:
    """A unit that reads constants only is a constant itself."""
    trains = step.ledger.trains(f"{step.name}.bias", step.module.bias)
    constant = all_read(live, source.constant)
    return Flow(
        axis,
        step.ledger.units.new(len(live)),
        constant,
        uniform=constant & all_read(live, source.zero if padded else source.uniform),
        settled=constant & all_read(live, source.settled),
        # A weight that reads a constant other than zero trains, and the unit moves with it.
        blocked=constant & ~trains & all_read(live, source.zero & source.blocked),
        value=along(step.out, axis),
    )


def _pads_with_zeros(module: Any) -> bool:
    padding = getattr(module, "padding", "valid")  # a linear layer has none
    if padding == "valid" or module.padding_mode != "zeros":
        return False
    if padding == "same":
        return any(size > 1 for size in module.kernel_size)
    return any(padding)
