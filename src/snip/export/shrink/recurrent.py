"""The rule of a single recurrent layer: LSTM, GRU, RNN."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from snip.export.shrink.flow import Flow, along, live_flow
from snip.export.shrink.layers import all_read, source_along
from snip.export.shrink.ledger import Layer, Reader, Step
from snip.tracing.arguments import given

Tensor = torch.Tensor

# How many gates there are, and which of them makes the new state: with nothing and no bias in
# that one the state stays zero.
GATES: dict[type, tuple[int, int]] = {nn.LSTM: (4, 2), nn.GRU: (3, 2), nn.RNN: (1, 0)}


def recurrent(step: Step) -> Any:
    """Hidden units lie along the last dimension of the outputs and of the states."""
    module, packed = step.module, not isinstance(step.out[0], Tensor)
    stacked = module.num_layers > 1 or module.bidirectional or module.proj_size
    if stacked or packed or given(step.node, 1, "hx") is not None:
        return None
    source = source_along(step, step.before.ndim - 1)
    flow = _result(step, source)
    _add_readers(step, source, flow)
    states = step.out[1]
    if isinstance(states, tuple):
        return flow, tuple(flow.through(state, state.ndim - 1) for state in states)
    return flow, flow.through(states, states.ndim - 1)


def _result(step: Step, source: Flow | None) -> Flow:
    """A unit whose candidate gate is empty stays at zero; any other is taken to be alive."""
    module, hidden = step.module, step.module.hidden_size
    start = GATES[type(module)][1] * hidden
    rows = slice(start, start + hidden)
    into, again = _live(step, "weight_ih_l0")[rows], _live(step, "weight_hh_l0")[rows]
    read = source or live_flow(torch.zeros(module.input_size, dtype=torch.long), 0)
    silent = still = torch.ones(hidden, dtype=torch.bool)
    for key in ("bias_ih_l0", "bias_hh_l0") if module.bias else ():
        bias = getattr(module, key)
        silent = silent & (bias.detach() == 0).cpu()[rows]
        still = still & ~step.ledger.trains(f"{step.name}.{key}", bias).expand(len(bias))[rows]

    def lasting(flag: Tensor) -> Tensor:
        """Where a flag holds at the first step and then at every next one."""
        while not torch.equal(flag, following := flag & all_read(again, flag)):
            flag = following
        return flag

    zero = lasting(silent & all_read(into, read.zero))
    return Flow(
        step.out[0].ndim - 1,
        step.ledger.units.new(hidden),
        constant=zero,
        uniform=zero,
        settled=lasting(zero & all_read(into, read.settled)),
        blocked=lasting(zero & still & all_read(into, read.blocked)),
        value=along(step.out[0], step.out[0].ndim - 1),
    )


def _add_readers(step: Step, source: Flow | None, flow: Flow) -> None:
    gates, candidate = GATES[type(step.module)]
    constant = torch.zeros(gates, len(flow.units), dtype=torch.bool)
    constant[candidate] = flow.constant
    rows, refusal = flow.units.repeat(gates), "has no bias that could take over a constant"
    folds = {"weight_hh_l0": (flow, flow.zero)}
    if source is not None:
        folds["weight_ih_l0"] = source, source.even if step.module.bias else source.zero
    for key, (read, foldable) in folds.items():
        live = _live(step, key)
        step.ledger.readers.append(
            Reader(step.name, read, rows, live, foldable, constant.flatten(), refusal)
        )
    step.ledger.layers.append(Layer(step.name, step.module, source, flow))


def _live(step: Step, key: str) -> Tensor:
    return step.ledger.live(f"{step.name}.{key}", getattr(step.module, key))
