"""A parameter of which only the surviving weights exist, under its original name in files."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

# How a layer runs: by its surviving weights, by a dense Winograd kernel on blocks, or in torch.
SPARSE, WINOGRAD, DENSE = WAYS = ("sparse", "winograd", "dense")


class Packed:
    """Where the kept values of a tensor of `shape` belong: positions in flat order."""

    def __init__(self, mask: torch.Tensor) -> None:
        self.shape = mask.shape
        self.positions = torch.nonzero(mask.reshape(-1)).flatten()

    @property
    def kept(self) -> int:
        """Number of surviving weights."""
        return len(self.positions)

    @property
    def total(self) -> int:
        """Number of weights before pruning."""
        return self.shape.numel()

    @property
    def mask(self) -> torch.Tensor:
        """The bool mask."""
        mask = torch.zeros(self.total, dtype=torch.bool)
        mask[self.positions] = True
        return mask.view(self.shape)

    def pack(self, dense: torch.Tensor) -> torch.Tensor:
        """The kept values of a dense tensor."""
        return dense.reshape(-1)[self.positions.to(dense.device)]

    def unpack(self, values: torch.Tensor) -> torch.Tensor:
        """The dense tensor; differentiable in the values."""
        if self.kept == self.total:
            return values.view(self.shape)
        dense = values.new_zeros(self.total)
        return dense.index_copy(0, self.positions.to(values.device), values).view(self.shape)

    def __deepcopy__(self, memo: dict[int, Any]) -> Packed:
        return self  # never written to, and larger than the values


class PackedModule(nn.Module):
    """A layer with packed parameters. `state_dict` speaks the plain layer's names and shapes."""

    way = SPARSE  # the one place that says how this layer runs

    def ways(self) -> tuple[str, ...]:
        """The ways in which this layer can run."""
        return (SPARSE,)

    def __init__(self) -> None:
        super().__init__()
        self.packed: dict[str, Packed] = {}

    def add_packed(self, name: str, dense: torch.Tensor | None, mask: torch.Tensor | None) -> None:
        """Register `name`: whole without a mask, its kept values with one, nothing if all went."""
        if dense is None or (mask is not None and not mask.any() and dense.ndim == 1):
            self.register_parameter(name, None)
            if dense is not None:
                self.packed[name] = Packed(torch.zeros(dense.shape, dtype=torch.bool))
            return
        if mask is None:
            mask = torch.ones(dense.shape, dtype=torch.bool)
        self.packed[name] = Packed(mask)
        values = self.packed[name].pack(dense.detach()).clone()
        self.register_parameter(name, nn.Parameter(values, requires_grad=dense.requires_grad))

    def dense(self, name: str) -> torch.Tensor | None:
        """The parameter as the plain layer has it; differentiable."""
        if name not in self.packed:
            return None
        values = self._parameters[name]
        if values is None:  # a bias of which nothing is left
            return None
        return self.packed[name].unpack(values)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, packed in self.packed.items():
            values = self._parameters[name]
            dense = torch.zeros(packed.shape) if values is None else packed.unpack(values.detach())
            destination[prefix + name] = dense

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, metadata: Any, strict: bool, *rest: Any
    ) -> None:
        missing, _unexpected, errors = rest
        for name, packed in self.packed.items():
            key = prefix + name
            if key not in state_dict:
                missing.append(key)
                continue
            dense = state_dict[key]
            values = self._parameters[name]
            if dense.shape != packed.shape:
                errors.append(f"{key} has shape {tuple(dense.shape)}, not {tuple(packed.shape)}")
            elif torch.count_nonzero(dense) > torch.count_nonzero(packed.pack(dense)):
                errors.append(f"{key} has weights outside the masks: densify, load, prune again")
            elif values is not None:
                with torch.no_grad():
                    values.copy_(packed.pack(dense))
        for name, buffer in self._buffers.items():
            if buffer is not None and prefix + name in state_dict:
                buffer.copy_(state_dict[prefix + name])
