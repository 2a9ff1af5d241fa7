"""Accelerate a network where it stands, with the optimisers that train it, and back.

`snip.accelerate` makes a copy. Inside somebody else's trainer the network has been handed around by
then, so here it becomes the copy itself: every reference to it, and every optimiser that has its
parameters, goes on as before. Meanwhile an optimiser's `state_dict` has the ordinary shapes, as the
network's has, so that checkpoints are those of an ordinary training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from snip.distributed.wrappers import unwrap
from snip.engine.accelerate import accelerate, densify
from snip.engine.layers.packing import Packed, PackedModule
from snip.network.parameters import Accelerated

HOOKS = "_snip_hooks"  # on an optimiser: what gives its state_dict the ordinary shapes

Change = Callable[[torch.Tensor], torch.Tensor]


def accelerate_in_place(
    network: nn.Module, inputs: Any, optimizers: Iterable[torch.optim.Optimizer]
) -> bool:
    """Let `network` compute with its surviving weights only; False where that does not pay."""
    network = unwrap(network)
    fast = accelerate(network, inputs)
    if fast is network:
        return False
    packed = _packed(fast)
    _become(network, fast, optimizers, {name: one.pack for name, one in packed.items()}, packed)
    return True


def densify_in_place(network: nn.Module, optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Make `network` ordinary again, with its weights and the optimisers' states as they are."""
    network = unwrap(network)
    if isinstance(network, Accelerated):
        changes: dict[str, Change] = {n: one.unpack for n, one in _packed(network).items()}
        _become(network, densify(network), optimizers, changes, {})


def _become(
    network: nn.Module,
    other: nn.Module,
    optimizers: Iterable[torch.optim.Optimizer],
    changes: dict[str, Change],
    packed: dict[str, Packed],
) -> None:
    """Make `network` what `other` is; optimisers get its parameters, and their states changed."""
    names: dict[torch.Tensor, str] = {p: name for name, p in network.named_parameters()}
    # Past a `__setattr__` of the user's. The dict is shared: a part of the network that refers to
    # the whole, which is `other`, sees the same.
    object.__setattr__(network, "__class__", other.__class__)
    object.__setattr__(network, "__dict__", vars(other))
    new = dict(network.named_parameters())
    for optimizer in optimizers:
        optimizer = torchs_own(optimizer)
        for group in optimizer.param_groups:
            # A bias of which nothing is left is no parameter of an accelerated network. The old
            # one keeps its place, without a gradient, so that states of both kinds fit.
            group["params"] = [new.get(names.get(p, ""), p) for p in group["params"]]
        for old in [p for p in optimizer.state if names.get(p) in new]:
            name = names[old]
            state = optimizer.state.pop(old)
            if name in changes:
                shape = old.shape
                state = {key: _changed(part, shape, changes[name]) for key, part in state.items()}
            optimizer.state[new[name]] = state
        _translate(optimizer, {new[name]: one for name, one in packed.items() if name in new})


def torchs_own(optimizer: Any) -> torch.optim.Optimizer:
    """torch's own optimiser inside a wrapper such as Accelerate's."""
    while not isinstance(optimizer, torch.optim.Optimizer) or hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


def _packed(network: nn.Module) -> dict[str, Packed]:
    """How the surviving weights of each sparse layer's parameters are stored, by name."""
    return {
        f"{prefix}.{key}" if prefix else key: one
        for prefix, module in network.named_modules()
        if isinstance(module, PackedModule)
        for key, one in module.packed.items()
    }


def _changed(part: Any, shape: torch.Size, change: Change) -> Any:
    """A part of an optimiser's state, changed if it has a value for each weight."""
    return change(part) if isinstance(part, torch.Tensor) and part.shape == shape else part


def _translate(optimizer: torch.optim.Optimizer, packed: dict[Any, Packed]) -> None:
    """Let `state_dict` of an optimiser give, and `load_state_dict` take, the ordinary shapes."""
    for handle in vars(optimizer).pop(HOOKS, ()):
        handle.remove()
    if not packed:
        return

    def each(state_dict: dict[str, Any], change: Callable[[Packed, Any], Any]) -> dict[str, Any]:
        ours = [p for group in optimizer.param_groups for p in group["params"]]
        theirs = [i for group in state_dict["param_groups"] for i in group["params"]]
        by_index = {i: packed[p] for i, p in zip(theirs, ours, strict=False) if p in packed}
        state = {
            i: {key: change(by_index[i], part) for key, part in own.items()}
            if i in by_index
            else own
            for i, own in state_dict["state"].items()
        }
        return {**state_dict, "state": state}

    def saved(_optimizer: Any, state_dict: dict[str, Any]) -> dict[str, Any]:
        return each(
            state_dict, lambda one, part: _changed(part, torch.Size([one.kept]), one.unpack)
        )

    def loaded(_optimizer: Any, state_dict: dict[str, Any]) -> dict[str, Any]:
        return each(state_dict, lambda one, part: _changed(part, one.shape, one.pack))

    vars(optimizer)[HOOKS] = (
        optimizer.register_state_dict_post_hook(saved),
        optimizer.register_load_state_dict_pre_hook(loaded),
    )
