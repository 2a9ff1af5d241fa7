"""Recurrent layers and attention, written out for numbers that follow paths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from snip.network.operations import operation_of
from snip.network.path_rules import number, something

Tensor = torch.Tensor
State = tuple[Tensor, ...]
Weights = Sequence[Tensor | None]  # w_ih, w_hh, then b_ih, b_hh and w_hr where there are any
Step = Callable[[Tensor, State, Weights], State]


def lstm_step(x: Tensor, state: State, weights: Weights) -> State:
    """sigmoid(z) becomes 1 + z (never zero, and it depends on z), tanh(z) becomes z."""
    h, c = state
    i, f, g, o = _gates(x, h, weights).chunk(4, -1)
    c = something((1 + f) * c + (1 + i) * g)
    h = something((1 + o) * c)
    if len(weights) in (3, 5):  # proj_size: the state is projected to fewer units
        h = something(F.linear(h, weights[-1]))  # type: ignore[arg-type]
    return h, c


def gru_step(x: Tensor, state: State, weights: Weights) -> State:
    """h' = (1 - z) n + z h with n = tanh(W x + r * (U h)); 1 - z and z are both 1 + z here."""
    (h,) = state
    w_ih, w_hh, b_ih, b_hh = _four(weights)
    r_x, z_x, n_x = something(F.linear(x, w_ih, b_ih)).chunk(3, -1)
    r_h, z_h, n_h = something(F.linear(h, w_hh, b_hh)).chunk(3, -1)
    n = n_x + (1 + r_x + r_h) * n_h
    return (something((1 + z_x + z_h) * (n + h)),)


def rnn_step(x: Tensor, state: State, weights: Weights) -> State:
    """h' = W x + U h + b."""
    return (_gates(x, state[0], weights),)


_STEPS: dict[str, Step] = {
    "lstm": lstm_step,
    "gru": gru_step,
    "rnn_tanh": rnn_step,
    "rnn_relu": rnn_step,
}


def cell(function: Any, x: Tensor, hx: Any, *weights: Tensor | None) -> Any:
    """lstm_cell, gru_cell, rnn_tanh_cell, rnn_relu_cell."""
    state = tuple(map(number, hx)) if isinstance(hx, (tuple, list)) else (number(hx),)
    result = _step(function)(number(x), state, weights)
    return result if isinstance(hx, (tuple, list)) else result[0]


def recurrent(function: Any, data: Tensor, *rest: Any) -> Any:
    """torch.lstm, torch.gru, torch.rnn_tanh and torch.rnn_relu, on a packed sequence or not."""
    data = number(data)
    if isinstance(rest[0], Tensor) and isinstance(rest[2], list):
        sizes, hx, flat, _, layers, _, _, both, first = *rest, False
        steps = list(data.split(sizes.tolist()))
    else:
        hx, flat, _, layers, _, _, both, first = rest
        steps = list(data.unbind(1 if first else 0))
    states = _split_states(hx, layers * (1 + both))
    outputs, finals = _run_layers(_step(function), steps, states, flat, 1 + both)
    output = torch.cat(outputs) if data.ndim == 2 else torch.stack(outputs, 1 if first else 0)
    return (output, *(torch.stack(part) for part in zip(*finals, strict=True)))


def _step(function: Any) -> Step:
    return _STEPS[operation_of(function).name.removesuffix("_cell")]


def attend(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """softmax(q k) v: uniform where q or k is zero, and it depends on both. Masks are ignored."""
    scores = something(query @ key.transpose(-2, -1))
    weights = 1 + scores + scores.mean(-1, keepdim=True)
    return something(weights @ value), weights


def scaled_dot_product_attention(
    function: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
) -> Tensor:
    """F.scaled_dot_product_attention, grouped queries included."""
    query, key, value = number(query), number(key), number(value)
    if kwargs.get("enable_gqa"):
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    return attend(query, key, value)[0]


def multi_head_attention(
    function: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """F.multi_head_attention_forward on [tokens, (batch,) features]."""
    named = dict(zip(ATTENTION_ARGUMENTS, args, strict=False)) | kwargs
    heads, batched = named["num_heads"], query.ndim == 3
    tensors = [number(x) if batched else number(x).unsqueeze(1) for x in (query, key, value)]
    q, k, v = (
        something(F.linear(x, weight, bias))
        for x, weight, bias in zip(tensors, *_projections(named), strict=True)
    )
    if named["bias_k"] is not None:
        k = torch.cat([k, named["bias_k"].expand(-1, k.shape[1], -1)])
        v = torch.cat([v, named["bias_v"].expand(-1, v.shape[1], -1)])
    # [tokens, batch, features] -> [batch, heads, tokens, features of a head]
    split = [x.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3) for x in (q, k, v)]
    mixed, weights = attend(*split)
    joined = mixed.permute(2, 0, 1, 3).flatten(-2)
    output = something(F.linear(joined, named["out_proj_weight"], named["out_proj_bias"]))
    if named.get("average_attn_weights", True):
        weights = weights.mean(1)
    if not batched:
        output, weights = output.squeeze(1), weights.squeeze(0)
    return output, weights if named.get("need_weights", True) else None


ATTENTION_ARGUMENTS = """
    embed_dim_to_check num_heads in_proj_weight in_proj_bias bias_k bias_v add_zero_attn
    dropout_p out_proj_weight out_proj_bias training key_padding_mask need_weights attn_mask
    use_separate_proj_weight q_proj_weight k_proj_weight v_proj_weight static_k static_v
    average_attn_weights is_causal
""".split()  # noqa: SIM905


def _projections(named: dict[str, Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    if named.get("use_separate_proj_weight"):
        weights = [named[f"{part}_proj_weight"] for part in "qkv"]
    else:
        weights = named["in_proj_weight"].chunk(3)
    bias = named["in_proj_bias"]
    return weights, [None] * 3 if bias is None else bias.chunk(3)


def _run_layers(
    step: Step, steps: list[Tensor], states: list[State], flat: list[Tensor], directions: int
) -> tuple[list[Tensor], list[State]]:
    per_run = len(flat) // len(states)
    finals = []
    for layer in range(len(states) // directions):
        runs = []
        for direction in range(directions):
            index = layer * directions + direction
            weights = flat[index * per_run : (index + 1) * per_run]
            outputs, final = _run(step, steps, states[index], weights, reverse=direction == 1)
            runs.append(outputs)
            finals.append(final)
        steps = [torch.cat(both, -1) for both in zip(*runs, strict=True)]
    return steps, finals


def _run(
    step: Step, steps: list[Tensor], state: State, weights: Weights, *, reverse: bool
) -> tuple[list[Tensor], State]:
    # One step alone would not use the recurrent weights, which training on longer input or with a
    # carried state will: it is run twice.
    order = list(range(len(steps))) if len(steps) > 1 else [0, 0]
    outputs: dict[int, Tensor] = {}
    for t in reversed(order) if reverse else order:
        active = len(steps[t])  # of a packed sequence, only the rows that are long enough
        new = step(steps[t], tuple(part[:active] for part in state), weights)
        outputs[t] = new[0]
        state = tuple(torch.cat([a, b[active:]]) for a, b in zip(new, state, strict=True))
    return [outputs[t] for t in range(len(steps))], state


def _split_states(hx: Any, runs: int) -> list[State]:
    """The first state of each layer and direction."""
    parts = [number(part) for part in (hx if isinstance(hx, (tuple, list)) else (hx,))]
    return [tuple(part[index] for part in parts) for index in range(runs)]


def _gates(x: Tensor, h: Tensor, weights: Weights) -> Tensor:
    w_ih, w_hh, b_ih, b_hh = _four(weights)
    return something(F.linear(x, w_ih, b_ih) + F.linear(h, w_hh, b_hh))


def _four(weights: Weights) -> tuple[Any, Any, Any, Any]:
    """w_ih, w_hh, b_ih, b_hh; None for biases that there are not."""
    b_ih, b_hh = weights[2:4] if len(weights) >= 4 else (None, None)
    return weights[0], weights[1], b_ih, b_hh
