"""Which rule stands for which layer, function and method."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from snip.export.shrink import elementwise, layers, recurrent, shapes
from snip.export.shrink.step import Rule, opaque

_ACTIVATIONS = """
    LeakyReLU ELU SELU CELU GELU SiLU Mish Hardtanh Hardswish Hardsigmoid Sigmoid Tanh Softplus
    Softsign Tanhshrink Softshrink Hardshrink LogSigmoid Threshold Identity"""

_NAMES: dict[Rule, str] = {
    elementwise.through: """
        leaky_relu elu selu celu gelu silu mish hardtanh hardswish hardsigmoid sigmoid tanh
        softplus softsign tanhshrink softshrink hardshrink logsigmoid threshold abs neg square
        sqrt exp clamp clip sin cos erf contiguous clone detach float double""",
    elementwise.relu: "relu relu6",
    elementwise.dropout: "dropout dropout1d dropout2d dropout3d",
    elementwise.added: "add sub subtract div divide true_divide pow maximum minimum",
    elementwise.multiplied: "mul multiply",
    elementwise.pad: "pad",
    elementwise.upsample: "interpolate upsample",
    shapes.flatten: "flatten",
    shapes.view: "view reshape",
    shapes.reduce_positions(scales=False): "mean amax amin",
    shapes.reduce_positions(scales=True): "sum",
    shapes.squeeze: "squeeze",
    shapes.unsqueeze: "unsqueeze",
    shapes.transpose: "transpose swapaxes",
    shapes.permute: "permute",
    shapes.concatenate: "cat concat",
    shapes.size: "size",
    shapes.nothing: "dim is_floating_point",
} | {
    rule(dimensions): f"{name}{dimensions}d"
    for dimensions in (1, 2, 3)
    for rule, name in (
        (elementwise.maximum_pool, "max_pool"),
        (elementwise.average_pool, "avg_pool"),
        (elementwise.adaptive_pool, "adaptive_avg_pool"),
        (elementwise.adaptive_pool, "adaptive_max_pool"),
    )
}

METHODS: dict[str, Rule] = {
    name + suffix: rule
    for rule, names in _NAMES.items()
    for name in names.split()
    for suffix in ("", "_")
}

FUNCTIONS: dict[Any, Rule] = (
    {
        getattr(place, name): rule
        for name, rule in METHODS.items()
        for place in (torch, F)
        if hasattr(place, name)
    }
    | {
        getattr(operator, name): rule
        for rule, names in {
            elementwise.added: "add sub truediv pow iadd isub itruediv",
            elementwise.multiplied: "mul imul",
            elementwise.through: "neg",
            shapes.getitem: "getitem",
        }.items()
        for name in names.split()
    }
    | {getattr: shapes.attribute}
)


def _modules() -> dict[type, Rule]:
    table: dict[type, Rule] = {
        nn.Linear: layers.linear,
        nn.ReLU: elementwise.relu,
        nn.ReLU6: elementwise.relu,
        nn.PReLU: elementwise.prelu,
        nn.Dropout: elementwise.dropout,
        nn.Flatten: shapes.flatten_module,
        nn.Upsample: elementwise.upsample,
    }
    table |= {kind: recurrent.recurrent for kind in recurrent.GATES}
    table |= {getattr(nn, name): elementwise.through for name in _ACTIVATIONS.split()}
    for d in (1, 2, 3):
        kinds = {
            f"Conv{d}d": layers.convolution,
            f"ConvTranspose{d}d": layers.transposed_convolution,
            f"BatchNorm{d}d": layers.batch_norm,
            f"Dropout{d}d": elementwise.dropout,
            f"MaxPool{d}d": elementwise.maximum_pool(d),
            f"AvgPool{d}d": elementwise.average_pool(d),
            f"AdaptiveAvgPool{d}d": elementwise.adaptive_pool(d),
            f"AdaptiveMaxPool{d}d": elementwise.adaptive_pool(d),
        }
        kinds |= {f"{kind}Pad{d}d": elementwise.pad_module for kind in _PADS}
        table |= {getattr(nn, name): rule for name, rule in kinds.items() if hasattr(nn, name)}
    return table


_PADS = ("Zero", "Constant", "Reflection", "Replication", "Circular")
MODULES = _modules()


def rule_of(node: fx.Node, module: nn.Module | None) -> Rule:
    """The rule of an operation; of a layer only if it is PyTorch's own, not a subclass."""
    if module is not None:
        return MODULES.get(type(module), opaque)
    if node.op == "call_method":
        return METHODS.get(str(node.target), opaque)
    if node.op == "call_function":
        return FUNCTIONS.get(node.target, opaque)
    return opaque if node.op == "output" else shapes.nothing
