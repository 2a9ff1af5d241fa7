"""Keep the zeros of a pruned model through training, copies and files.

The forward pass is left alone, so a pruned model computes, compiles and saves like any other.
Two hooks hold the zeros. The gradient of a pruned weight is zeroed as soon as it is accumulated, so
gradient clipping and the optimiser's state never see it. After every `optimizer.step()` the weight
itself is zeroed, because an optimiser may move it without a gradient: by momentum from before the
pruning, or by mixing rows as Muon does. A hook per optimiser would need a line in the user's loop;
ours is process-wide, finds the masks on the parameters, and costs nothing for other parameters.

Each mask is stored twice: on its parameter, where the optimiser meets it, and on the module that
owns the parameter, because `deepcopy`, `pickle` and EMA copies carry the module's attributes along.
The module has the whole mask; a parameter that is sharded (FSDP2) has its rows of it.

A module may get another parameter in place of a pruned one, as from `fully_shard`. Before the first
step of an optimiser, and whenever a model is asked for its masks, modules are compared with what
they held. A DTensor of the same shape is this rank's shard of the same weights and gets the mask.
Any other parameter may be meant to be dense, so a warning only names it.
"""

from __future__ import annotations

import copy
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn, optim
from torch.optim.optimizer import (
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from snip.common.errors import warn
from snip.common.text import listed
from snip.distributed.shards import check_split, is_sharded, local, part
from snip.distributed.wrapped import is_fsdp
from snip.masks.provenance import Provenance

HELD = "_snip_held"  # on a Module: its _Held
PROVENANCE = "_snip_provenance"  # on the root Module
RIDER = "_snip_keep"  # on a Parameter: its Keep

# Integer types as wide as a number, by its bytes. The bits of a number times 0 are exactly +0.0,
# also for NaN and -0.0, and times 1 they stay: several times as fast as a conditional write.
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Once training has begun, a mask of up to this many elements is stored as such integers.
MAX_ELEMENTS_AS_BITS = 1 << 18
CHUNK_ELEMENTS = 1 << 17  # a larger mask is made integers in chunks that fit a CPU's cache,
MIN_ELEMENTS_PER_KEPT = 48  # or, at this sparsity, the kept values are copied out and back

# Attributes of torch's optimisers that hold what they take the root of. Only of these exact
# types: a subclass may mean something else by the same name.
SQUARES: dict[type[optim.Optimizer], tuple[str, ...]] = {
    optim.Adam: ("exp_avg_sq", "max_exp_avg_sq"),
    optim.AdamW: ("exp_avg_sq", "max_exp_avg_sq"),
    optim.NAdam: ("exp_avg_sq",),
    optim.RAdam: ("exp_avg_sq",),
    optim.RMSprop: ("square_avg",),
    optim.Adagrad: ("sum",),
}
# The root, 1e-12, is a hundredth of the smallest default eps (1e-10 in Adagrad, 1e-8 in the
# others), so a weight that is released grows as from zero.
TINY_SQUARE = 1e-24
STEPS_BETWEEN_LIFTS = 256  # a mean that decays by a tenth a step is 2e-36 then: still fast

StepHook = Callable[[optim.Optimizer, Any, Any], Any]


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
    """Return the masks that `model` holds, in its parameters' order, and their provenance."""
    replaced = follow(model)
    _warn_of_replaced(replaced)
    masks = {
        f"{prefix}.{key}" if prefix else key: mask
        for prefix, module in model.named_modules()
        for key, (_, mask) in _held_pairs(module)
    }
    names = [name for name, _ in model.named_parameters() if name in masks]
    own = {name: masks[name].clone() for name in names if name not in replaced}
    return (own, model.__dict__.get(PROVENANCE, Provenance())) if own else None


def leave(model: nn.Module) -> None:
    """Note that a copy with parameters of its own is trained instead of `model`.

    An optimiser that still has these parameters would silently train nothing: its first step warns.
    """
    for _, keep in _kept(model.parameters()):
        keep.left = True


def rezero(model: nn.Module) -> None:
    """Zero the pruned weights again, after something other than an optimiser wrote them."""
    for parameter, keep in _kept(model.parameters()):
        keep.zero_(parameter)


def is_emptied(parameter: torch.Tensor) -> bool:
    """Return whether the parameter is held and nothing of it is kept."""
    return any(not keep.mask.any() for _, keep in _kept([parameter]))


class Keep:
    """One parameter's mask, ready to zero what is pruned in the parameter or its gradient."""

    def __init__(self, mask: torch.Tensor, *, sharded: bool = False) -> None:
        self.mask = mask  # bool, or 0 and 1 as integers
        self.sharded = sharded  # the mask is of this rank's shard of a DTensor
        self.indices: torch.Tensor | None = None
        self.prepared = False
        self.gradient_hook: Any = None
        self.left = False  # another network is trained instead of this parameter's

    def zero_(self, tensor: torch.Tensor) -> None:
        """Write zeros where the mask is False, also over NaN and -0.0; leave the rest alone."""
        # This runs twice per parameter in every step, so it makes as few calls as it can.
        tensor = tensor.detach()  # autograd must not record the zeroing
        if self.sharded:
            tensor = local(tensor)
        bits = BITS.get(tensor.element_size())
        if self.mask.device != tensor.device:
            self._move(tensor.device)
        if self.indices is not None and tensor.is_contiguous():
            flat = tensor.view(-1)
            kept = flat.take(self.indices)
            flat.zero_().index_copy_(0, self.indices, kept)
        elif bits is None:  # complex numbers of two doubles
            tensor.masked_fill_(self.mask == 0, 0)
        elif tensor.numel() <= MAX_ELEMENTS_AS_BITS or tensor.device.type != "cpu":
            tensor.view(bits).mul_(self.mask)
        else:
            rows = max(1, CHUNK_ELEMENTS * len(tensor) // tensor.numel())
            for chunk, mask in zip(tensor.split(rows), self.mask.split(rows), strict=True):
                chunk.view(bits).mul_(mask)

    def watch_gradient(self, parameter: torch.Tensor) -> None:
        """Zero the gradient of pruned weights whenever it is accumulated."""
        # PyTorch takes a hook only for a parameter that requires a gradient. A frozen one gets it
        # as well, because it may be unfrozen later.
        frozen = not parameter.requires_grad
        parameter.requires_grad_(True)
        self.gradient_hook = parameter.register_post_accumulate_grad_hook(self.on_gradient)
        parameter.requires_grad_(not frozen)

    def on_gradient(self, parameter: torch.Tensor) -> None:
        """Zero the gradient where the parameter is pruned."""
        gradient = parameter.grad
        # A sparse gradient (an embedding's) is left to the zeroing after the step.
        if gradient is not None and not gradient.is_sparse:
            if not self.prepared:  # not before: pruning alone does not need it
                self._prepare(gradient)
            self.zero_(gradient)

    def _prepare(self, gradient: torch.Tensor) -> None:
        """Store the mask in the form in which it is applied fastest."""
        self.prepared = True
        size = self.mask.numel()
        if size <= MAX_ELEMENTS_AS_BITS:
            self.mask = self.mask.to(BITS.get(gradient.element_size(), torch.bool))
        elif int(self.mask.count_nonzero()) * MIN_ELEMENTS_PER_KEPT <= size:
            self.indices = torch.nonzero(self.mask.reshape(-1)).flatten()

    def _move(self, device: torch.device) -> None:
        self.mask = self.mask.to(device)
        self.indices = None if self.indices is None else self.indices.to(device)

    def __reduce__(self) -> tuple[type, tuple[()]]:
        # In a pickle this is an empty dict, so that a saved parameter can be read without this
        # library and under `weights_only`. The module's _Held makes a new one after loading.
        return OrderedDict, ()


class _Held:
    """The masks of one module's own parameters; a copied or loaded module has its own."""

    def __init__(
        self, pairs: Mapping[str, tuple[Any, torch.Tensor]], module: nn.Module | None
    ) -> None:
        self.pairs = dict(pairs)  # parameter and whole mask, by the parameter's key
        self.module = _weakly(module)
        self.bind()

    def bind(self) -> None:
        """Put the masks on the parameters: zero them now, and from now on after each step."""
        after_every_step(after_step)
        for parameter, mask in self.pairs.values():
            keep = Keep(part(mask, parameter), sharded=is_sharded(parameter))
            setattr(parameter, RIDER, keep)
            keep.zero_(parameter)
            if parameter.grad is not None:
                keep.on_gradient(parameter)
            keep.watch_gradient(parameter)
        _holders.add(self)
        _checked.clear()
        before_every_step(_before_step)

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

    def follow(self, module: nn.Module) -> list[str]:
        """Move masks to DTensors that replaced parameters; return the keys replaced otherwise."""
        own = module._parameters
        # torch may swap a parameter for its conversion, which has none of our attributes.
        if any(own.get(key) is p and RIDER not in p.__dict__ for key, (p, _) in self.pairs.items()):
            self.rebind(module)
        new: dict[str, Any] = {
            key: own[key]
            for key, (parameter, _) in self.pairs.items()
            if own.get(key, parameter) is not parameter and own[key] is not None
        }
        sharded = [key for key, parameter in new.items() if is_sharded(parameter)]
        if any(new[key].shape == self.pairs[key][1].shape for key in sharded):
            for key in sharded:
                check_split(key, new[key])
            self.rebind(module)
        # FSDP2 has its parameters whole for a while, after an evaluation say.
        return [k for k in new if k not in sharded and not is_sharded(self.pairs[k][0])]

    def __deepcopy__(self, memo: dict[int, Any]) -> _Held:
        # The memo returns the parameters of the copied module. Masks are never written to, so
        # copies share them.
        pairs = {k: (copy.deepcopy(p, memo), mask) for k, (p, mask) in self.pairs.items()}
        return _Held(pairs, memo.get(id(self.module())))

    def __getstate__(self) -> dict[str, Any]:
        return {"pairs": self.pairs, "module": self.module()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.pairs = state["pairs"]
        self.module = _weakly(state.get("module"))
        self.bind()


_holders: weakref.WeakSet[_Held] = weakref.WeakSet()
# How many held parameters an optimiser had when its modules were last compared with what they held.
# Replaced parameters need another optimiser, and swapped ones lose their mask: either shows here.
_checked: weakref.WeakKeyDictionary[optim.Optimizer, int] = weakref.WeakKeyDictionary()
_our_hooks: set[StepHook] = set()


def before_every_step(hook: StepHook) -> None:
    """Call `hook` before any optimiser's step from now on, once however often this is asked."""
    if hook not in _our_hooks:
        register_optimizer_step_pre_hook(hook)
        _our_hooks.add(hook)


def after_every_step(hook: StepHook) -> None:
    """Call `hook` after any optimiser's step from now on, once however often this is asked."""
    if hook not in _our_hooks:
        register_optimizer_step_post_hook(hook)
        _our_hooks.add(hook)


def others_watch() -> bool:
    """Return whether anyone but us has hooks around every optimiser's step."""
    hooks = (*_global_optimizer_pre_hooks.values(), *_global_optimizer_post_hooks.values())
    return any(hook not in _our_hooks for hook in hooks)


def after_step(optimizer: optim.Optimizer, _args: Any, _kwargs: Any) -> None:
    """Zero the pruned weights that an optimiser may have moved."""
    keeps, idle = [], True
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            # Not by `__dict__`, which torch.compile cannot read: it may trace any step in here.
            keep = getattr(parameter, RIDER, None)
            if keep:
                keep.zero_(parameter)
                if parameter.device.type == "cpu" and not torch.compiler.is_compiling():
                    _lift_squares(optimizer, parameter, keep.mask)
                keeps.append(keep)
                idle = idle and keep.left and parameter.grad is None
    if keeps and idle and not _has_gradients(optimizer):
        for keep in keeps:
            keep.left = False  # warn once
        warn(
            f"this {type(optimizer).__name__} trains nothing: it was made before snip.accelerate, "
            "whose network has parameters of its own. Make the optimiser of that network's "
            "parameters().",
        )


def _before_step(optimizer: optim.Optimizer, _args: Any, _kwargs: Any) -> None:
    """Move masks to DTensors in time; warn of other new parameters that the optimiser moves."""
    if torch.compiler.is_compiling() or _checked.get(optimizer) == _count_held(optimizer):
        return
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    replaced = []
    for holder in list(_holders):
        module = holder.module()
        # Models that this optimiser does not train may be in any state.
        if module is not None and any(id(p) in trained for p in module._parameters.values()):
            keys = holder.follow(module)
            replaced += [
                f"{type(module).__name__}.{key}"
                for key in keys
                if id(module._parameters[key]) in trained
            ]
    _warn_of_replaced(replaced)
    _checked[optimizer] = _count_held(optimizer)


def follow(model: nn.Module) -> list[str]:
    """Move masks to DTensors that replaced parameters; return the names replaced otherwise."""
    replaced = [
        f"{prefix}.{key}" if prefix else key
        for prefix, module in model.named_modules()
        if HELD in module.__dict__
        for key in module.__dict__[HELD].follow(module)
    ]
    # What FSDP2 has whole for a while gets its mask when it is sharded again.
    return [] if replaced and any(map(is_fsdp, model.modules())) else replaced


def _warn_of_replaced(names: list[str]) -> None:
    if names:
        warn(
            f"{listed(names)} was replaced by another parameter after the pruning, whose zeros "
            "nobody holds: call masks.apply(model) after such a change."
        )


def _lift_squares(optimizer: optim.Optimizer, parameter: torch.Tensor, mask: torch.Tensor) -> None:
    """Raise an optimiser's second moments of pruned weights from zero to a tiny number.

    Adam and its kin divide by the root of a mean of squared gradients. torch's CPU kernels take the
    root of exactly 0.0 sixteen times as slowly, which made a step of AdamW half as long again with
    most weights pruned. No step changes: the gradient that is divided by the root is zero.
    """
    names = SQUARES.get(type(optimizer))
    state = optimizer.state.get(parameter) if names else None
    if not names or not state or int(state["step"]) % STEPS_BETWEEN_LIFTS != 1:
        return
    for name in names:
        if not isinstance(state.get(name), torch.Tensor):
            continue
        squares = local(state[name])
        fits = squares.shape == mask.shape and squares.device == mask.device
        if fits and squares.device.type == "cpu" and squares.is_floating_point():
            least = (mask == 0).to(squares.dtype).mul_(TINY_SQUARE)
            torch.maximum(squares, least, out=squares)


def _count_held(optimizer: optim.Optimizer) -> int:
    return sum(RIDER in p.__dict__ for group in optimizer.param_groups for p in group["params"])


def _has_gradients(optimizer: optim.Optimizer) -> bool:
    # An accelerated network's own parameters are not masked, so a Keep cannot tell.
    return any(p.grad is not None for group in optimizer.param_groups for p in group["params"])


def _kept(parameters: Iterable[torch.Tensor]) -> Iterator[tuple[torch.Tensor, Keep]]:
    """Yield the parameters that hold a mask, each with its Keep."""
    for parameter in parameters:
        keep = parameter.__dict__.get(RIDER)
        if keep:  # a parameter out of a pickle has an empty dict
            yield parameter, keep


def _held_pairs(module: nn.Module) -> Iterator[tuple[str, tuple[Any, torch.Tensor]]]:
    holder = module.__dict__.get(HELD)
    return iter(()) if holder is None else iter(holder.pairs.items())


def _weakly(module: nn.Module | None) -> Callable[[], nn.Module | None]:
    # The module has the masks: a strong reference back would keep it alive.
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


def _after_load(module: nn.Module, _incompatible_keys: Any) -> None:
    """Mask what was loaded; with `assign=True` the module even has new parameters."""
    module.__dict__[HELD].rebind(module)


def _rezero_after_load(model: nn.Module, _incompatible_keys: Any) -> None:
    """Zero again after a load, which writes a tied weight once per module that has it."""
    rezero(model)
