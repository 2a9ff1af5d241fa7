"""Torch's transformer encoder over sparse layers, without its short cut through plain weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from snip.engine.layers.packing import PackedModule
from snip.network.calls import tensors_in


class SteppedEncoderLayer(nn.TransformerEncoderLayer):
    """`nn.TransformerEncoderLayer` that calls its layers one by one, in inference as well.

    There torch's own computes all of them in one call, from weights that sparse layers do not have.
    """

    @property
    def activation_relu_or_gelu(self) -> int:
        """Zero: torch takes its short cut only with an activation that this number names."""
        return 0

    @activation_relu_or_gelu.setter
    def activation_relu_or_gelu(self, value: int) -> None:
        vars(self)["activation_relu_or_gelu"] = value  # for the ordinary layer

    def forward(
        self,
        src: torch.Tensor,
        src_mask: torch.Tensor | None = None,
        src_key_padding_mask: torch.Tensor | None = None,
        is_causal: bool = False,
    ) -> torch.Tensor:
        """As torch's layer does it; the encoder makes a nested tensor of padded sequences."""
        if not src.is_nested:
            return super().forward(src, src_mask, src_key_padding_mask, is_causal)
        padded = src.to_padded_tensor(0.0)
        lengths = torch.tensor([len(sequence) for sequence in src.unbind()])
        inside = torch.arange(padded.shape[1]) < lengths[:, None]
        made = super().forward(padded, src_mask, ~inside, is_causal)
        return torch._nested_tensor_from_mask(made, inside, mask_check=False)


class SteppedEncoder(nn.TransformerEncoder):
    """`nn.TransformerEncoder` whose first layer may have a bias of which nothing is left."""

    @property
    def use_nested_tensor(self) -> bool:
        """Not where torch would ask None for its gradient: see `forward`."""
        layers = [m for m in self.layers[0].modules() if isinstance(m, PackedModule)]
        gone = any(m._parameters[name] is None for m in layers for name in m.packed)
        return vars(self)["use_nested_tensor"] and not (gone and torch.is_grad_enabled())

    @use_nested_tensor.setter
    def use_nested_tensor(self, value: bool) -> None:
        vars(self)["use_nested_tensor"] = value  # for the ordinary encoder

    def forward(self, src: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """As torch's encoder does it.

        Torch asks each weight of the first layer whether it requires a gradient, if gradients are
        on, and None cannot say so. Where nothing requires one they might as well be off.
        """
        given = tensors_in((src, args, kwargs))
        wanted = any(tensor.requires_grad for tensor in (*given, *self.parameters()))
        with torch.set_grad_enabled(torch.is_grad_enabled() and wanted):
            return super().forward(src, *args, **kwargs)
