"""How a pruned model keeps its zeros through training, copies and files.

The forward pass is left alone, so a pruned model computes, compiles and saves like any other.
Two things hold the zeros. The gradient of a pruned weight is set to zero as soon as it is
accumulated, so gradient clipping and the optimiser's state never see it. After every
`optimizer.step()` the weight itself is set to zero, because an optimiser may move it without a
gradient: by momentum from before the pruning, or by mixing rows as Muon does.

Each mask is stored twice: on its parameter, where the optimiser meets it, and on the module that
owns the parameter, because `deepcopy`, `pickle` and EMA copies carry the module's attributes along.
The module has it whole; a parameter that is split over processes (FSDP2) has its part of it.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from snip.anatomy.parameters import is_sharded
from snip.common.errors import warn
from snip.distributed.models import is_fsdp
from snip.distributed.shards import part
from snip.masks import replaced
from snip.masks.keep import RIDER, Keep
from snip.masks.moments import lift
from snip.masks.provenance import Provenance
from snip.masks.replaced import warn_of
from snip.masks.watching import after_every_step

HELD = "_snip_held"  # on a Module: its _Held
PROVENANCE = "_snip_provenance"  # on the root Module


def hold(model: nn.Module, masks: Mapping[str, torch.Tensor], provenance: Provenance) -> None:
    """Zero the pruned weights and keep them zero; earlier masks of them are replaced."""
    by_module: dict[str, dict[str, torch.Tensor]] = {}
    for name, mask in masks.items():
        owner, _, key = name.rpartition(".")
        # The model holds a copy, so that the caller may change the mask later.
        by_module.setdefault(owner, {})[key] = mask.clone()
    for owner, own in by_module.items():
        module = model.get_submodule(owner)
        kept = {key: mask for key, (_, mask) in _held_pairs(module)}
        _release_module(module)
        pairs = {key: (module._parameters[key], mask) for key, mask in (kept | own).items()}
        module.__dict__[HELD] = _Held(pairs, module)
        module.register_load_state_dict_post_hook(_after_load)
    model.__dict__[PROVENANCE] = provenance
    _drop_load_hook(model, _rezero_after_load)
    model.register_load_state_dict_post_hook(_rezero_after_load)


def release(model: nn.Module) -> None:
    """Remove the masks: the weights stay as they are and may grow again."""
    for module in model.modules():
        _release_module(module)
    model.__dict__.pop(PROVENANCE, None)
    _drop_load_hook(model, _rezero_after_load)


def held(model: nn.Module) -> tuple[dict[str, torch.Tensor], Provenance] | None:
    """The masks that `model` holds, in its parameters' order, and their provenance."""
    lost = follow(model)
    warn_of(lost)
    found = {}
    for prefix, module in model.named_modules():
        for key, (_, mask) in _held_pairs(module):
            found[f"{prefix}.{key}" if prefix else key] = mask.clone()
    for name in lost:
        del found[name]
    if not found:
        return None
    order = [name for name, _ in model.named_parameters() if name in found]
    return {name: found[name] for name in order}, model.__dict__.get(PROVENANCE, Provenance())


def follow(model: nn.Module) -> list[str]:
    """Put masks on the DTensors that took the place of held parameters.

    Returns the names of other parameters that did, which are dense.
    """
    lost = [
        f"{prefix}.{key}" if prefix else key
        for prefix, module in model.named_modules()
        if HELD in module.__dict__
        for key in replaced.follow(module.__dict__[HELD], module)
    ]
    # What is whole for a while under FSDP2 gets its mask when it is split again.
    return [] if lost and any(map(is_fsdp, model.modules())) else lost


def leave(model: nn.Module) -> None:
    """Note that a copy with parameters of its own is trained instead of `model`.

    An optimiser that was made before and still has these parameters would train nothing, without
    a word: its first step will say so.
    """
    for parameter in model.parameters():
        keep = parameter.__dict__.get(RIDER)
        if keep:
            keep.left = True


def rezero(model: nn.Module) -> None:
    """Zero the pruned weights again, after something other than an optimiser wrote them."""
    for parameter in model.parameters():
        keep = parameter.__dict__.get(RIDER)
        if keep:
            keep.zero_(parameter)


def is_emptied(parameter: torch.Tensor) -> bool:
    """Whether it is held, and nothing of it is kept."""
    keep = parameter.__dict__.get(RIDER)
    return bool(keep and not keep.mask.any())


class _Held:
    """The masks of one module's own parameters; a copied or loaded module has its own."""

    def __init__(
        self, pairs: Mapping[str, tuple[Any, torch.Tensor]], module: nn.Module | None
    ) -> None:
        self.pairs = dict(pairs)
        self.module = _weakly(module)
        self.bind()

    def bind(self) -> None:
        """Put the masks on the parameters: zero them now, their gradients and steps from now on."""
        after_every_step(after_step)
        for parameter, mask in self.pairs.values():
            keep = Keep(part(mask, parameter), sharded=is_sharded(parameter))
            setattr(parameter, RIDER, keep)
            keep.zero_(parameter)
            if parameter.grad is not None:
                keep.on_gradient(parameter)
            keep.watch_gradient(parameter)
        replaced.watch(self)

    def rebind(self, module: nn.Module) -> None:
        """Put the masks on the parameters that the module has now."""
        self.unbind()
        self.pairs = {key: (module._parameters[key], mask) for key, (_, mask) in self.pairs.items()}
        self.bind()

    def unbind(self) -> None:
        """Take the masks off the parameters, which keep their values."""
        for parameter, _ in self.pairs.values():
            keep = parameter.__dict__.pop(RIDER, None)
            if keep and keep.gradient_hook is not None:
                keep.gradient_hook.remove()

    def __deepcopy__(self, memo: dict[int, Any]) -> _Held:
        # The memo returns the parameters of the copied module. The masks are never written to, so
        # that copies can share them.
        pairs = {k: (copy.deepcopy(p, memo), mask) for k, (p, mask) in self.pairs.items()}
        return _Held(pairs, memo.get(id(self.module())))

    def __getstate__(self) -> dict[str, Any]:
        return {"pairs": self.pairs, "module": self.module()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.pairs = state["pairs"]
        self.module = _weakly(state.get("module"))
        self.bind()


def _weakly(module: nn.Module | None) -> Callable[[], nn.Module | None]:
    """A module that lives no longer for being held on to here: it is what has the masks."""
    return (lambda: None) if module is None else weakref.ref(module)


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
    """Zero again after a load, in which a tied weight is written once per module that has it."""
    rezero(model)


def _held_pairs(module: nn.Module) -> Iterator[tuple[str, tuple[Any, torch.Tensor]]]:
    holder = module.__dict__.get(HELD)
    return iter(()) if holder is None else iter(holder.pairs.items())


def _after_load(module: nn.Module, _incompatible_keys: Any) -> None:
    """Mask what was loaded; with `assign=True` the module even has new parameters."""
    module.__dict__[HELD].rebind(module)


def after_step(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
    """Zero the pruned weights that an optimiser may have moved."""
    keeps, idle = [], True
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            # Not by `__dict__`, which torch.compile cannot read: it may follow any step in here.
            keep = getattr(parameter, RIDER, None)
            if keep:
                keep.zero_(parameter)
                if parameter.device.type == "cpu" and not torch.compiler.is_compiling():
                    lift(optimizer, parameter, keep.mask)
                keeps.append(keep)
                idle = idle and keep.left and parameter.grad is None
    if keeps and idle and not _trains(optimizer):
        _warn_of_idle(optimizer, keeps)


def _trains(optimizer: torch.optim.Optimizer) -> bool:
    """Whether any parameter has a gradient: an accelerated network's own are not masked."""
    return any(p.grad is not None for group in optimizer.param_groups for p in group["params"])


def _warn_of_idle(optimizer: torch.optim.Optimizer, keeps: list[Keep]) -> None:
    """Say once that an optimiser has parameters that are trained no more, and no others."""
    for keep in keeps:
        keep.left = False
    warn(
        f"this {type(optimizer).__name__} trains nothing: it was made before snip.accelerate, "
        "whose network has parameters of its own. Make the optimiser of that network's "
        "parameters().",
    )
