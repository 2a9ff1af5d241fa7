"""Cut layers down to the units that stay. A plan of cuts is plain data and can be saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from snip.common.errors import InputError
from snip.export.shrink.constants import add_bias

Tensor = torch.Tensor
Indices = tuple[int, ...]


@dataclass(frozen=True)
class Cut:
    """What stays of one layer: unit indices on each side, None where all stay."""

    inputs: Indices | None = None
    outputs: Indices | None = None
    new_bias: bool = False  # the layer had none, and constants were folded into one

    def after(self, earlier: Cut) -> Cut:
        """This cut and the one before it as one, by indices of the original."""
        return Cut(
            _composed(earlier.inputs, self.inputs),
            _composed(earlier.outputs, self.outputs),
            earlier.new_bias or self.new_bias,
        )


Plan = dict[str, Cut]  # by module name


def cut(model: nn.Module, plan: Mapping[str, Cut]) -> None:
    """Replace the tensors of the planned layers by smaller ones, in place."""
    for name, layer_cut in plan.items():
        module = _module(model, name)
        if layer_cut.new_bias and module.bias is None:
            add_bias(module)
        for key in [*module._parameters, *module._buffers]:
            tensor = getattr(module, key)
            if tensor is not None:
                _replace(module, key, sliced(module, key, tensor.detach(), layer_cut))
        _rename_sizes(module, layer_cut)


def sliced(module: nn.Module, key: str, tensor: Tensor, layer_cut: Cut) -> Tensor:
    """A layer's tensor, or its mask, without the units that go."""
    for dim, indices in _sides(module, key, tensor, layer_cut):
        tensor = tensor.index_select(dim, torch.tensor(indices, device=tensor.device))
    return tensor


def check_plan(model: nn.Module, plan: Mapping[str, Cut]) -> None:
    """Raise unless every layer of the plan is there, with at least as many units."""
    for name, layer_cut in plan.items():
        module = _module(model, name)
        if not isinstance(module, (nn.Linear, _ConvNd, _BatchNorm, nn.RNNBase)):
            raise InputError(f"{name!r} is a {type(module).__name__}, which is never shrunk.")
        inputs, outputs = _widths(module)
        for side, width in ((layer_cut.inputs, inputs), (layer_cut.outputs, outputs)):
            if side is not None and (not side or min(side) < 0 or max(side) >= width):
                raise InputError(
                    f"the layer {name!r} has {width} units, and unit {max(side, default=0)} was "
                    "kept of it: this is another model than the one that was shrunk."
                )


def _module(model: nn.Module, name: str) -> Any:
    try:
        return model.get_submodule(name)
    except AttributeError as error:
        raise InputError(
            f"there is no layer {name!r}: this is another model than the one that was shrunk."
        ) from error


def _sides(module: Any, key: str, tensor: Tensor, layer_cut: Cut) -> Iterator[tuple[int, Indices]]:
    """Which dimension of a tensor loses which side's units."""
    if tensor.ndim == 0:  # num_batches_tracked
        return
    inputs, outputs = layer_cut.inputs, layer_cut.outputs
    first, second = outputs, inputs
    if isinstance(module, nn.RNNBase):
        second = outputs if key.startswith("weight_hh") else inputs
        first = _every_gate(outputs, len(tensor) // module.hidden_size, module.hidden_size)
    elif isinstance(module, _ConvTransposeNd) and tensor.ndim > 1:
        first, second = inputs, outputs
    elif getattr(module, "groups", 1) > 1:
        second = None  # a group's inputs go with the group
    if first is not None:
        yield 0, first
    if tensor.ndim > 1 and second is not None:
        yield 1, second


def _every_gate(outputs: Indices | None, gates: int, hidden: int) -> Indices | None:
    if outputs is None:
        return None
    return tuple(gate * hidden + unit for gate in range(gates) for unit in outputs)


def _replace(module: nn.Module, key: str, tensor: Tensor) -> None:
    if key in module._buffers:
        module._buffers[key] = tensor.clone()
        return
    old = module._parameters[key]
    requires_grad = old is not None and old.requires_grad
    # setattr, so that a recurrent layer notes the new tensor in its own list too.
    setattr(module, key, nn.Parameter(tensor.clone(), requires_grad=requires_grad))


def _widths(module: Any) -> tuple[int, int]:
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features
    if isinstance(module, _ConvNd):
        return module.in_channels, module.out_channels
    if isinstance(module, _BatchNorm):
        return module.num_features, module.num_features
    return module.input_size, module.hidden_size


def _rename_sizes(module: Any, layer_cut: Cut) -> None:
    """The sizes that a layer tells of itself."""
    inputs, outputs = _widths(module)
    inputs = inputs if layer_cut.inputs is None else len(layer_cut.inputs)
    before, outputs = outputs, outputs if layer_cut.outputs is None else len(layer_cut.outputs)
    if isinstance(module, nn.Linear):
        module.in_features, module.out_features = inputs, outputs
    elif isinstance(module, _ConvNd):
        if module.groups > 1:
            module.groups = module.groups * outputs // before
        module.in_channels, module.out_channels = inputs, outputs
    elif isinstance(module, _BatchNorm):
        module.num_features = outputs
    else:
        module.input_size, module.hidden_size = inputs, outputs
        module.flatten_parameters()


def _composed(earlier: Indices | None, later: Indices | None) -> Indices | None:
    if earlier is None or later is None:
        return later if earlier is None else earlier
    return tuple(earlier[i] for i in later)
