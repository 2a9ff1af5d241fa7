"""Zero stays zero: how a pruned model keeps its masks through training, copies and files.

The forward pass is left alone, so a pruned model computes, compiles and saves like any other.
Two things hold the zeros: the gradient of a pruned weight is zeroed as it is accumulated (so
clipping and optimiser state never see it), and after every `optimizer.step()` the value is
(momentum from before the pruning, Muon's mixing of rows, third-party optimisers).

The mask rides on the parameter, where the optimiser meets it, and on the module that owns the
parameter, which is what `deepcopy`, `pickle` and EMA copies carry along.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

RIDER = "_snip_keep"  # on a Parameter: its _Keep
HELD = "_snip_held"  # on a Module: its _Held
PROVENANCE = "_snip_provenance"  # on the root Module
FEW = 3  # up to 1/3 density it is faster to lift out the kept values than to read the mask


def hold(
    model: nn.Module, masks: Mapping[str, torch.Tensor], provenance: Mapping[str, Any]
) -> None:
    """Zero the pruned weights and keep them zero; earlier masks of these parameters go."""
    by_module: dict[str, dict[str, torch.Tensor]] = {}
    for name, mask in masks.items():
        owner, _, key = name.rpartition(".")
        # A copy of its own: what the caller does to the mask later changes nothing here.
        by_module.setdefault(owner, {})[key] = mask.clone()
    for owner, own in by_module.items():
        module = model.get_submodule(owner)
        kept = {key: mask for key, (_, mask) in _held_pairs(module)}
        _release_module(module)
        pairs = {key: (module._parameters[key], mask) for key, mask in (kept | own).items()}
        module.__dict__[HELD] = _Held(pairs)
        module.register_load_state_dict_post_hook(_after_load)
    model.__dict__[PROVENANCE] = dict(provenance)
    _drop_load_hook(model, _rezero_after_load)
    model.register_load_state_dict_post_hook(_rezero_after_load)


def release(model: nn.Module) -> None:
    """Let go of the masks: the weights stay as they are and may grow again."""
    for module in model.modules():
        _release_module(module)
    model.__dict__.pop(PROVENANCE, None)
    _drop_load_hook(model, _rezero_after_load)


def rebind(model: nn.Module) -> None:
    """Hold the parameters that the modules have now, after something put new ones in place."""
    for module in model.modules():
        if HELD in module.__dict__:
            _after_load(module, None)


def held(model: nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
    """The masks that `model` holds, in its parameters' order, and their provenance."""
    found = {}
    for prefix, module in model.named_modules():
        for key, (_, mask) in _held_pairs(module):
            found[f"{prefix}.{key}" if prefix else key] = mask.clone()
    if not found:
        return None
    order = [name for name, _ in model.named_parameters() if name in found]
    return {name: found[name] for name in order}, dict(model.__dict__.get(PROVENANCE, {}))


def rezero(model: nn.Module) -> None:
    """Zero the pruned weights again, after something other than an optimiser wrote them."""
    for parameter in model.parameters():
        keep = parameter.__dict__.get(RIDER)
        if keep:
            keep.zero_(parameter)


class _Keep:
    """One parameter's mask, ready to zero what is pruned in the parameter or its gradient."""

    def __init__(self, mask: torch.Tensor) -> None:
        self.mask = mask
        few = int(mask.sum()) * FEW <= mask.numel()
        self.indices = torch.nonzero(mask.reshape(-1)).flatten() if few else None
        self.empty = not mask.any()
        self.gradient_hook: Any = None

    def zero_(self, tensor: torch.Tensor) -> None:
        """Exact zeros (also over NaN and -0.0) where the mask is False; the rest untouched."""
        # Runs twice for every parameter in every step: as few calls as possible.
        tensor = tensor.detach()  # nothing here is for autograd to see
        if self.mask.device != tensor.device:
            self._move(tensor.device)
        if self.empty:
            tensor.zero_()
        elif self.indices is None or not tensor.is_contiguous():
            torch.where(self.mask, tensor, tensor.new_zeros(()), out=tensor)
        else:
            flat = tensor.view(-1)
            kept = flat.index_select(0, self.indices)
            flat.zero_().index_copy_(0, self.indices, kept)

    def watch_gradient(self, parameter: torch.Tensor) -> None:
        """Have the gradient zeroed as it comes in."""
        frozen = not parameter.requires_grad
        parameter.requires_grad_(True)  # a hook can only be put on what requires a gradient,
        self.gradient_hook = parameter.register_post_accumulate_grad_hook(self.on_gradient)
        parameter.requires_grad_(not frozen)  # but stays for the time when this one is unfrozen

    def on_gradient(self, parameter: torch.Tensor) -> None:
        # A sparse gradient (an embedding's) is left to the zeroing after the step.
        if parameter.grad is not None and not parameter.grad.is_sparse:
            self.zero_(parameter.grad)

    def _move(self, device: torch.device) -> None:
        self.mask = self.mask.to(device)
        self.indices = None if self.indices is None else self.indices.to(device)

    def __reduce__(self) -> tuple[type, tuple[()]]:
        # An empty dict in a pickle: a saved parameter needs no library to be read and passes
        # `weights_only`; a module's _Held binds its parameters anew.
        return OrderedDict, ()


class _Held:
    """The masks of one module's own parameters; follows the module into its copies."""

    def __init__(self, pairs: Mapping[str, tuple[Any, torch.Tensor]]) -> None:
        self.pairs = dict(pairs)
        self.bind()

    def bind(self) -> None:
        _watch_optimizers()
        for parameter, mask in self.pairs.values():
            keep = _Keep(mask)
            setattr(parameter, RIDER, keep)
            keep.zero_(parameter)
            if parameter.grad is not None:
                keep.on_gradient(parameter)
            keep.watch_gradient(parameter)

    def unbind(self) -> None:
        for parameter, _ in self.pairs.values():
            keep = parameter.__dict__.pop(RIDER, None)
            if keep and keep.gradient_hook is not None:
                keep.gradient_hook.remove()

    def __deepcopy__(self, memo: dict[int, Any]) -> _Held:
        # Through the memo the parameters are the copied module's own; masks are never written
        # to, so copies share them.
        return _Held({k: (copy.deepcopy(p, memo), mask) for k, (p, mask) in self.pairs.items()})

    def __getstate__(self) -> dict[str, Any]:
        return {"pairs": self.pairs}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.pairs = state["pairs"]
        self.bind()


def _release_module(module: nn.Module) -> None:
    holder = module.__dict__.pop(HELD, None)
    if holder is not None:
        holder.unbind()
    _drop_load_hook(module, _after_load)


def _drop_load_hook(module: nn.Module, unwanted: Callable[..., None]) -> None:
    hooks = module._load_state_dict_post_hooks
    for handle in [handle for handle, hook in hooks.items() if hook is unwanted]:
        del hooks[handle]


def _rezero_after_load(model: nn.Module, _incompatible_keys: Any) -> None:
    """Last of all: a tied weight is loaded once more for each module that shares it."""
    rezero(model)


def _held_pairs(module: nn.Module) -> Iterator[tuple[str, tuple[Any, torch.Tensor]]]:
    holder = module.__dict__.get(HELD)
    return iter(()) if holder is None else iter(holder.pairs.items())


def _after_load(module: nn.Module, _incompatible_keys: Any) -> None:
    """Loaded values obey the mask; `assign=True` has even brought new parameters."""
    held_here = module.__dict__[HELD]
    held_here.unbind()
    held_here.pairs = {
        key: (module._parameters[key], mask) for key, (_, mask) in held_here.pairs.items()
    }
    held_here.bind()


def _watch_optimizers() -> None:
    """Ask PyTorch, once per process, to be called after any optimiser's step.

    A hook per optimiser would need a line in the user's loop; this one finds the masks on the
    parameters themselves, keeps no list of models, and is free for parameters without one.
    """
    global _watching
    if not _watching:
        register_optimizer_step_post_hook(after_step)
        _watching = True


_watching = False


def after_step(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
    """Zero again what an optimiser may have moved."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            keep = parameter.__dict__.get(RIDER)
            if keep:
                keep.zero_(parameter)
