"""What all sparse layers share: packed parameters, and the ordinary layer they stand for."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
from torch import nn

from snip.engine.kernels.index import LinearIndex
from snip.engine.layers.optimizer_state import LENDERS, mark
from snip.engine.recording import refuse_recording
from snip.masks.holding import HELD, release

# How a layer runs: by its surviving weights, by a dense Winograd kernel on blocks, or in torch.
SPARSE, WINOGRAD, DENSE = WAYS = ("sparse", "winograd", "dense")
Ways = dict[str, str]  # by layer name


class Packed:
    """Where the kept values of one parameter belong: their positions in flat order."""

    def __init__(self, dense: torch.Tensor, mask: torch.Tensor | None) -> None:
        self.shape = dense.shape
        self.masked = mask is not None  # without a mask all values are kept
        self.requires_grad = dense.requires_grad
        kept = torch.ones(dense.numel()) if mask is None else mask.reshape(-1)
        self.positions = torch.nonzero(kept).flatten()

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
        mask = torch.zeros(self.total, dtype=torch.bool, device="cpu")
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
    """A layer that stands for an ordinary one and has only its surviving weights as parameters.

    Everything else about the ordinary layer (settings, mode, hooks, a user's own attributes) is
    taken over under the same names, and `state_dict` has the ordinary names and shapes.
    """

    WEIGHTS = frozenset({"weight"})  # the parameters that an ordinary layer must have,
    OPTIONAL = frozenset({"bias"})  # and those that it may have
    # The attributes that are not the ordinary layer's. Its parameters and its hold on the masks
    # are not taken over: they would carry the dense weights along.
    OWN = frozenset({"_parameters", HELD, "kind", "packed", "indices", "lent", "way", "relu"})

    way = SPARSE  # the one place that says how this layer runs
    relu = False  # whether `on_blocks` and `on_columns` end with a ReLU; `forward` never does

    def __init__(self, layer: nn.Module, masks: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.__dict__.update(self._without_own(_state(layer)))
        self.kind = type(layer)
        self.packed: dict[str, Packed] = {}
        self.indices: dict[Any, Any] = {}  # what the kernels read, prepared when it is needed
        # What `state_dict` gave out: a whole parameter, and the values that it had then.
        self.lent: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        for name, parameter in layer._parameters.items():
            self._pack(name, parameter, masks.get(name))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the layer; where torch records or transforms it alone, say what to do instead."""
        if torch.compiler.is_compiling():
            from snip.engine.uncompiled import run_uncompiled

            return run_uncompiled(partial(super().__call__, **kwargs), *args)
        refuse_recording((*args, *kwargs.values()))
        if self.lent:
            self.take_back()
        return super().__call__(*args, **kwargs)

    @classmethod
    def covers(cls, layer: nn.Module) -> bool:
        """Whether this class can stand for a layer of the type that the table names."""
        return cls.WEIGHTS <= layer._parameters.keys() <= cls.WEIGHTS | cls.OPTIONAL

    def ways(self) -> tuple[str, ...]:
        """The ways in which this layer can run."""
        return (SPARSE,)

    def _pack(self, name: str, dense: torch.Tensor | None, mask: torch.Tensor | None) -> None:
        if dense is None:
            self.register_parameter(name, None)
            return
        packed = self.packed[name] = Packed(dense, mask)
        if not packed.kept and dense.ndim == 1:  # a bias of which nothing is left
            self.register_parameter(name, None)
            return
        values = packed.pack(dense.detach()).clone()
        self.register_parameter(name, nn.Parameter(values, requires_grad=dense.requires_grad))
        self._mark()

    def linear_index(self, name: str) -> LinearIndex:
        """Where the kernels find the weights of a matrix: prepared once."""
        if name not in self.indices:
            self.indices[name] = LinearIndex.from_mask(self.packed[name].mask)
        index: LinearIndex = self.indices[name]
        return index

    def dense(self, name: str) -> torch.Tensor | None:
        """The parameter in its ordinary shape, differentiable; None if nothing of it is left."""
        values = self._parameters.get(name)
        return None if values is None else self.packed[name].unpack(values)

    def whole(self, name: str) -> torch.Tensor:
        """The same, with zeros for a bias of which nothing is left."""
        dense = self.dense(name)
        if dense is not None:
            return dense
        like = next(p for p in self._parameters.values() if p is not None)
        return like.new_zeros(self.packed[name].shape)

    # ---- copies: the sparse layer of an ordinary one, and back ----

    def own_settings(self, memo: dict[int, Any]) -> None:
        """Copy the settings that are still shared with the ordinary layer."""
        self.__dict__.update(copy.deepcopy(self._without_own(vars(self)), memo))
        release(self)  # the masks are in `packed` now

    def ordinary_parameters(self) -> dict[str, nn.Parameter | None]:
        """New parameters for an ordinary layer, with the weights as they are now."""
        self.take_back()
        found: dict[str, nn.Parameter | None] = dict.fromkeys(self._parameters)
        for name, packed in self.packed.items():
            values = self._parameters[name]
            trained = packed.requires_grad if values is None else values.requires_grad
            found[name] = nn.Parameter(self.whole(name).detach().clone(), requires_grad=trained)
        return found

    def ordinary_state(self, parameters: dict[str, nn.Parameter | None]) -> dict[str, Any]:
        """The attributes of an ordinary layer with these parameters."""
        return {**self._without_own(_state(self)), "_parameters": parameters}

    def _without_own(self, state: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in state.items() if name not in self.OWN}

    def __getstate__(self) -> dict[str, Any]:
        self.take_back()
        # Indices hold addresses of this process, and are quickly prepared again.
        return {**vars(self), "indices": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._mark()  # a copied or loaded parameter has no attributes

    def _mark(self) -> None:
        for name, parameter in self._parameters.items():
            if parameter is not None:
                mark(parameter, self.packed[name].shape)

    # ---- state_dict, in the ordinary layer's names and shapes ----

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        self.take_back()
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, packed in self.packed.items():
            whole = destination[prefix + name] = self.whole(name).detach()
            values = self._parameters[name]
            if values is not None and packed.kept < packed.total:
                self.lent[name] = whole, values.detach().clone()
                LENDERS.add(self)

    def take_back(self) -> None:
        """Take over what was written into the tensors that `state_dict` gave out.

        Those of an ordinary layer are its parameters themselves, and averages of weights are often
        kept by writing into them. Here they are taken over before the layer is used again or an
        optimiser trains it, unless the weights have changed since: no step is undone.
        """
        LENDERS.discard(self)
        while self.lent:
            name, (whole, before) = self.lent.popitem()
            values, written = self._parameters[name], self.packed[name].pack(whole)
            if values is not None and not _same(written, before) and _same(values, before):
                with torch.no_grad():
                    values.copy_(written)

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, metadata: Any, strict: bool, *rest: Any
    ) -> None:
        missing, unexpected, errors = rest
        if strict:
            unexpected += self._unknown(state_dict, prefix)
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

    def _unknown(self, state_dict: Any, prefix: str) -> list[str]:
        """Keys that would be this layer's, but that it has no place for."""
        own = {*self.packed, *self._buffers, *self._modules, "_extra_state"}
        names = {
            key: key[len(prefix) :].split(".")[0] for key in state_dict if key.startswith(prefix)
        }
        return [key for key, name in names.items() if name not in own]


def _same(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Whether two tensors have the same values; NaN is itself."""
    if one.dtype != two.dtype or one.device != two.device:
        return False
    return torch.allclose(one, two, rtol=0, atol=0, equal_nan=True)


def _state(module: nn.Module) -> dict[str, Any]:
    """A module's attributes, as a copy or a pickle of it has them."""
    return dict(module.__reduce_ex__(2)[2])  # type: ignore[arg-type]
