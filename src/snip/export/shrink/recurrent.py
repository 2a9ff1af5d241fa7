"""The rule of a single recurrent layer: LSTM, GRU, RNN."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from snip.export.shrink.flow import Flow, along, live_flow
from snip.export.shrink.layers import all_read
from snip.export.shrink.network import Layer, Reader
from snip.export.shrink.step import Step, opaque

Tensor = torch.Tensor

GATES: dict[type, int] = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1}
# The gate that makes the new state: with nothing and no bias in it the state stays zero.
CANDIDATE: dict[type, int] = {nn.LSTM: 2, nn.GRU: 2, nn.RNN: 0}


def recurrent(step: Step) -> Any:
    """Hidden units lie along the last dimension of the outputs and of the states."""
    if not _plain(step):
        return opaque(step)
    source = step.flow
    if source is not None and source.axis != step.before.ndim - 1:
        opaque(step)
        source = None
    states = step.out[1]
    flow = _result(step, source)
    _add_readers(step, source, flow)
    if isinstance(states, tuple):
        return flow, tuple(flow.through(state, state.ndim - 1) for state in states)
    return flow, flow.through(states, states.ndim - 1)


def _plain(step: Step) -> bool:
    module = step.module
    alone = module.num_layers == 1 and not module.bidirectional and not module.proj_size
    return alone and step.given(1, "hx") is None and isinstance(step.out[0], Tensor)


def _result(step: Step, source: Flow | None) -> Flow:
    """A unit whose candidate gate is empty stays at zero; any other is taken to be alive."""
    module, network, name = step.module, step.network, str(step.node.target)
    hidden = module.hidden_size
    start = CANDIDATE[type(module)] * hidden
    rows = slice(start, start + hidden)
    into = network.live(name, "weight_ih_l0", module.weight_ih_l0)[rows]
    again = network.live(name, "weight_hh_l0", module.weight_hh_l0)[rows]
    given = source or live_flow(torch.zeros(module.input_size, dtype=torch.long), 0)
    silent, still = _biases(step, rows)

    def lasting(start: Tensor) -> Tensor:
        """Where a flag holds at the first step and then at every next one."""
        while not torch.equal(start, following := start & all_read(again, start)):
            start = following
        return start

    zero = lasting(silent & all_read(into, given.zero))
    return Flow(
        step.out[0].ndim - 1,
        network.units.new(hidden),
        constant=zero,
        uniform=zero,
        settled=lasting(zero & all_read(into, given.settled)),
        blocked=lasting(zero & still & all_read(into, given.blocked)),
        value=along(step.out[0], step.out[0].ndim - 1),
    )


def _biases(step: Step, rows: slice) -> tuple[Tensor, Tensor]:
    """Where the candidate's biases are zero, and where training leaves them alone."""
    silent = still = torch.ones(step.module.hidden_size, dtype=torch.bool)
    for key in ("bias_ih_l0", "bias_hh_l0") if step.module.bias else ():
        bias = getattr(step.module, key)
        trains = torch.as_tensor(step.network.trains(str(step.node.target), key, bias))
        silent = silent & (bias.detach() == 0).cpu()[rows]
        still = still & ~trains.expand(len(bias))[rows]
    return silent, still


def _add_readers(step: Step, source: Flow | None, flow: Flow) -> None:
    module, network, name = step.module, step.network, str(step.node.target)
    gates, candidate = GATES[type(module)], CANDIDATE[type(module)]
    constant_rows = torch.zeros(gates, module.hidden_size, dtype=torch.bool)
    constant_rows[candidate] = flow.constant
    for key, given in (("weight_ih_l0", source), ("weight_hh_l0", flow)):
        if given is None:
            continue
        even = given.constant & given.uniform if module.bias and given is source else given.zero
        network.readers.append(
            Reader(
                name,
                given,
                flow.units.repeat(gates),
                network.live(name, key, getattr(module, key)),
                foldable=even,
                spare=given.zero & given.settled & given.blocked,
                constant_rows=constant_rows.flatten(),
                refusal="has no bias that could take over a constant",
            )
        )
    network.layers.append(Layer(name, module, source, flow))
