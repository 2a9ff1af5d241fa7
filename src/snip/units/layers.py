"""Rules of the layers that are cut: linear, convolution, recurrent, batch norm."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.modules.conv import _ConvTransposeNd

from snip.network.operations import given
from snip.units.flow import Flow, along, plain
from snip.units.ledger import Flows, Layer, Reader, Step

Tensor = torch.Tensor

# How many gates a recurrent layer has, and which of them makes the new state: a unit for which
# that one reads and adds nothing stays at zero.
GATES: dict[type, tuple[int, int]] = {nn.LSTM: (4, 2), nn.GRU: (3, 2), nn.RNN: (1, 0)}


def weighted(step: Step) -> Flow | None:
    """Linear layers and convolutions: a unit reads all units before it, or those of its group."""
    module, ledger = step.module, step.ledger
    transposed, groups = isinstance(module, _ConvTransposeNd), getattr(module, "groups", 1)
    axis = step.out.ndim - 1 - len(getattr(module, "kernel_size", ()))
    source = _source_along(step, axis)
    if groups > 1 and (transposed or source is None):
        return None
    live = _matrix(ledger.live(f"{step.name}.weight", module.weight), transposed).any(2)
    live = torch.block_diag(*live.chunk(groups)) if groups > 1 else live
    read = source or plain(axis, torch.zeros(live.shape[1]).long())
    # A transposed convolution makes a pattern of a constant: only zeros are the same everywhere.
    padded = transposed or _pads_with_zeros(module)
    still = ledger.still(f"{step.name}.bias", module.bias)
    result = _result(step, live, read, _all_read(live, read.constant), still)
    uniform = result.constant & _all_read(live, read.zero if padded else read.uniform)
    result = replace(result, uniform=uniform)
    ledger.layers.append(Layer(step.name, module, source, result))
    if groups > 1:  # a group goes or stays as a whole
        for units in torch.cat([read.units.view(groups, -1), result.units.view(groups, -1)], 1):
            ledger.unite(units[:1].expand(len(units) - 1), units[1:])
    elif source is not None:
        weight = _matrix(module.weight.detach(), transposed)
        foldable = source.zero if padded else source.even
        refusal = "pads with zeros, so that a constant differs at the border"
        rows = result.units, result.constant
        ledger.readers.append(
            Reader(step.name, "bias", weight, live, source, *rows, foldable, refusal)
        )
    return result


def recurrent(step: Step) -> Flows:
    """A single LSTM, GRU or RNN: units lie along the last dimension of outputs and states."""
    module = step.module
    stacked = module.num_layers > 1 or module.bidirectional or module.proj_size
    packed = not isinstance(step.out[0], Tensor)
    if stacked or packed or given(step.node, 1, "hx") is not None:
        return None
    source = _source_along(step, step.before.ndim - 1)
    flow = _hidden_units(step, source)
    step.ledger.layers.append(Layer(step.name, module, source, flow))
    states = step.out[1]
    if isinstance(states, tuple):
        return flow, tuple(flow.through(state, state.ndim - 1) for state in states)
    return flow, flow.through(states, states.ndim - 1)


def _hidden_units(step: Step, source: Flow | None) -> Flow:
    """A unit whose candidate gate is empty stays at zero; any other is taken to be alive."""
    module, ledger, hidden = step.module, step.ledger, step.module.hidden_size
    weights = {key: getattr(module, key) for key in ("weight_ih_l0", "weight_hh_l0")}
    into, again = (ledger.live(f"{step.name}.{key}", weights[key]) for key in weights)
    gates, candidate = GATES[type(module)]
    rows = slice(candidate * hidden, (candidate + 1) * hidden)
    silent = still = torch.ones(hidden).bool()
    for key in ("bias_ih_l0", "bias_hh_l0") if module.bias else ():
        bias = getattr(module, key)
        silent = silent & (bias.detach() == 0).cpu()[rows]
        still = still & ledger.still(f"{step.name}.{key}", bias).expand(len(bias))[rows]
    read = source or plain(0, torch.zeros(module.input_size).long())
    zero = silent & _all_read(into[rows], read.zero)
    flow = _result(step, into[rows], read, zero, still, again[rows])
    constant = torch.zeros(gates, hidden).bool()
    constant[candidate] = flow.constant
    all_rows = flow.units.repeat(gates), constant.flatten()
    refusal = "has no bias that could take over a constant"
    reads = [(weights["weight_hh_l0"], again, flow, flow.zero)]
    if source is not None:
        foldable = source.even if module.bias else source.zero
        reads.append((weights["weight_ih_l0"], into, source, foldable))
    for weight, live, units, foldable in reads:
        matrix = _matrix(weight.detach())
        ledger.readers.append(
            Reader(step.name, "bias_ih_l0", matrix, live, units, *all_rows, foldable, refusal)
        )
    return flow


def batch_norm(step: Step) -> Flow | None:
    """Passes each channel on by itself."""
    flow, module = step.flow, step.module
    if flow.axis != 1:
        return None
    mean = module.running_mean
    unmoved = flow.zero if mean is None else flow.zero & (mean == 0).cpu()
    still = step.ledger.still(f"{step.name}.bias", module.bias)
    # In train mode a constant becomes beta, in eval mode only if the running mean has met it.
    result = flow.through(step.out, settled=flow.settled & unmoved, blocked=flow.blocked & still)
    step.ledger.layers.append(Layer(step.name, module, None, result, makes_units=False))
    return result


def _source_along(step: Step, axis: int) -> Flow | None:
    """What flows into a layer along the dimension it reads; units along another are kept."""
    source = step.flow_of(step.input)
    if source is not None and source.axis != axis:
        step.keep_all()
        return None
    return source


def _matrix(weight: Tensor, transposed: bool = False) -> Tensor:
    """A weight, or its mask, as [units that read, units that are read, positions]."""
    weight = weight.transpose(0, 1) if transposed else weight
    return weight.flatten(2) if weight.ndim > 2 else weight.unsqueeze(2)


def _all_read(live: Tensor, flag: Tensor) -> Tensor:
    """Per row: whether everything it reads has the flag (nothing read: True)."""
    return ~(live & ~flag).any(1)


def _result(
    step: Step, live: Tensor, source: Flow, constant: Tensor, still: Tensor, again: Any = None
) -> Flow:
    """New units: which are constants that last, if they read one another by `again` each step."""

    def lasting(flag: Tensor) -> Tensor:
        while again is not None and not torch.equal(flag, next_ := flag & _all_read(again, flag)):
            flag = next_
        return flag

    out = step.out if isinstance(step.out, Tensor) else step.out[0]
    axis = out.ndim - 1 - len(getattr(step.module, "kernel_size", ()))
    constant = lasting(constant)
    return Flow(
        axis,
        step.ledger.new(len(live)),
        constant,
        uniform=constant,
        settled=lasting(constant & _all_read(live, source.settled)),
        # A weight that reads a constant other than zero trains, and the unit moves with it.
        blocked=lasting(constant & still & _all_read(live, source.zero & source.blocked)),
        value=along(out, axis),
    )


def _pads_with_zeros(module: Any) -> bool:
    padding = getattr(module, "padding", "valid")  # a linear layer has none
    if padding == "valid" or module.padding_mode != "zeros":
        return False
    return any(size > 1 for size in module.kernel_size) if padding == "same" else any(padding)
