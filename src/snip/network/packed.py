"""Weights that hold several layers: q, k and v of attention, the gates of a recurrent layer.

Such a tensor may keep thousands of connections and none of its keys, say, so that each part counts
as a layer of its own wherever it matters that a layer is empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from snip.distributed.wrappers import unwrap
from snip.network.normed import attribute_names
from snip.network.parameters import parameter_owners

Packed = Mapping[str, Sequence[str]]  # parameter -> the names of its parts, equal ones of its rows

ATTENTION = ("q", "k", "v")
GATES: dict[type[nn.Module], tuple[str, ...]] = {  # in the order in which torch stores them
    nn.LSTM: ("input gate", "forget gate", "cell", "output gate"),
    nn.LSTMCell: ("input gate", "forget gate", "cell", "output gate"),
    nn.GRU: ("reset gate", "update gate", "new state"),
    nn.GRUCell: ("reset gate", "update gate", "new state"),
}
PACKED: tuple[type[nn.Module], ...] = (nn.MultiheadAttention, *GATES)


def packed_parts(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """The parts of each parameter of `model` that holds several."""
    model = unwrap(model)
    if not any(isinstance(module, PACKED) for module in model.modules()):
        return {}
    keys, owners = attribute_names(model), parameter_owners(model)
    found = {name: _parts_of(places[0][1], keys[name]) for name, places in owners.items()}
    return {name: parts for name, parts in found.items() if parts}


def split(tensors: Mapping[str, torch.Tensor], packed: Packed) -> dict[str, torch.Tensor]:
    """The tensors with each part by itself, named "attention.in_proj_weight (k)"; views."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        parts = part_names(name, packed)
        # A whole tensor stays as it is: a single number has no rows to divide.
        found |= zip(parts, tensor.chunk(len(parts)) if name in packed else [tensor], strict=True)
    return found


def part_names(name: str, packed: Packed) -> list[str]:
    """What the parts of a parameter are called; its own name if it is whole."""
    return [f"{name} ({part})" for part in packed[name]] if name in packed else [name]


def _parts_of(module: nn.Module, key: str) -> tuple[str, ...]:
    if isinstance(module, nn.MultiheadAttention):
        return ATTENTION if key in ("in_proj_weight", "in_proj_bias") else ()
    gates = next((parts for kind, parts in GATES.items() if isinstance(module, kind)), ())
    return gates if key.startswith(("weight_ih", "weight_hh", "bias_ih", "bias_hh")) else ()
