"""Rules of the layers that are cut: linear, convolution, batch norm."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from snip.export.shrink.flow import Flow, along, live_flow
from snip.export.shrink.network import Layer, Reader
from snip.export.shrink.step import Step, opaque

Tensor = torch.Tensor


def linear(step: Step) -> Flow:
    """Features lie along the last dimension."""
    return _weighted(step, step.out.ndim - 1, padded=False)


def convolution(step: Step) -> Flow | None:
    """Channels lie before the positions; a group goes or stays as a whole."""
    axis = step.out.ndim - 1 - len(step.module.kernel_size)
    if step.module.groups == 1:
        return _weighted(step, axis, padded=_pads_with_zeros(step.module))
    return _grouped(step, axis)


def transposed_convolution(step: Step) -> Flow | None:
    """As a convolution, but a constant becomes a pattern: only zeros are folded."""
    if step.module.groups > 1:
        return opaque(step)
    axis = step.out.ndim - 1 - len(step.module.kernel_size)
    return _weighted(step, axis, padded=True, transposed=True)


def batch_norm(step: Step) -> Flow | None:
    """Passes each channel on by itself."""
    flow, module, network = step.flow, step.module, step.network
    if flow is None:
        return None
    if flow.axis != 1:
        return opaque(step)
    mean = module.running_mean
    unmoved = flow.zero if mean is None else flow.zero & (mean == 0).cpu()
    name = str(step.node.target)
    trains = torch.as_tensor(network.trains(name, "bias", module.bias))
    # In train mode a constant becomes beta, in eval mode only if the running mean has met it.
    result = flow.through(step.out, settled=flow.settled & unmoved, blocked=flow.blocked & ~trains)
    network.layers.append(Layer(name, module, None, result))
    return result


def all_read(live: Tensor, flag: Tensor) -> Tensor:
    """Per row: whether everything it reads has the flag (nothing read: True)."""
    return ~(live & ~flag).any(1)


def _weighted(step: Step, axis: int, *, padded: bool, transposed: bool = False) -> Flow:
    """Every output unit reads every input unit."""
    network, name = step.network, str(step.node.target)
    live = network.live(name, "weight", step.module.weight)
    live = live.flatten(2).any(2) if live.ndim > 2 else live
    live = live.t() if transposed else live
    source = _source(step, axis)
    result = _result(step, axis, live, source or _fixed(live.shape[1]), padded=padded)
    network.layers.append(Layer(name, step.module, source, result))
    if source is not None:
        even = source.zero if padded else source.constant & source.uniform
        network.readers.append(
            Reader(
                name,
                source,
                result.units,
                live,
                foldable=even,
                spare=source.zero & source.settled & source.blocked,
                constant_rows=result.constant,
                refusal="pads with zeros, so that a constant differs at the border",
            )
        )
    return result


def _grouped(step: Step, axis: int) -> Flow | None:
    source, network, module = _source(step, axis), step.network, step.module
    if source is None:  # of the network's input nothing can be cut
        return opaque(step)
    name, groups = str(step.node.target), module.groups
    own = network.live(name, "weight", module.weight).flatten(2).any(2)  # [out, in / groups]
    rows = torch.arange(len(own)).unsqueeze(1)
    columns = rows // (len(own) // groups) * own.shape[1] + torch.arange(own.shape[1])
    live = torch.zeros(len(own), len(source.units), dtype=torch.bool)
    live[rows, columns] = own
    result = _result(step, axis, live, source, padded=_pads_with_zeros(module))
    pairs = zip(source.units.view(groups, -1), result.units.view(groups, -1), strict=True)
    for pair in pairs:
        network.units.unite_all(pair)
    network.layers.append(Layer(name, module, source, result))
    return result


def _result(step: Step, axis: int, live: Tensor, source: Flow, *, padded: bool) -> Flow:
    """A unit that reads constants only is a constant itself."""
    bias = step.module.bias
    trains = torch.as_tensor(step.network.trains(str(step.node.target), "bias", bias))
    constant = all_read(live, source.constant)
    even = source.zero if padded else source.uniform
    return Flow(
        axis,
        step.network.units.new(len(live)),
        constant,
        uniform=constant & all_read(live, even),
        settled=constant & all_read(live, source.settled),
        # A weight that reads a constant other than zero trains, and the unit moves with it.
        blocked=constant & ~trains & all_read(live, source.zero & source.blocked),
        value=along(step.out, axis),
    )


def _source(step: Step, axis: int) -> Flow | None:
    source = step.flow
    if source is not None and source.axis != axis:
        opaque(step)
        return None
    return source


def _fixed(columns: int) -> Flow:
    return replace(live_flow(torch.zeros(columns, dtype=torch.long), 0))


def _pads_with_zeros(module: Any) -> bool:
    if module.padding_mode != "zeros" or module.padding == "valid":
        return False
    if module.padding == "same":
        return any(size > 1 for size in module.kernel_size)
    return any(module.padding)
