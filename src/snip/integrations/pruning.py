"""Prune, restore masks and accelerate inside any trainer.

`snip.accelerate` makes a copy. Inside somebody else's trainer the network has been handed around by
then, so here it becomes the copy itself: every reference to it, and every optimiser that has its
parameters, goes on as before. Meanwhile an optimiser's `state_dict` has the ordinary shapes, as the
network's has, so that checkpoints are those of an ordinary training.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from snip.algorithm import checked_request, prune
from snip.common.errors import InputError, imported, nearest, warn
from snip.distributed.ranks import ALONE, Ranks, everybody
from snip.distributed.wrapped import unwrap
from snip.engine.accelerate import accelerate, densify
from snip.engine.layers.packing import Packed, PackedModule
from snip.masks import Masks, Provenance, held_masks
from snip.network.calls import Call, device_of, mapped
from snip.network.network import Network
from snip.network.parameters import Accelerated
from snip.network.untouched import undisturbed

TAKEN = ("model", "batches", "sparsity", "training")  # options of `prune` that a trainer decides
OF_NETWORK = ("loss_fn", "params")  # options that cannot be checked without a network
HOOKS = "_snip_hooks"  # on an optimiser: the hooks that give its state_dict the ordinary shapes
SAME = "Load the same checkpoint, or the same pruned model, in every process."

Change = Callable[[torch.Tensor], torch.Tensor]


class Pruning:
    """The pruning of one network in somebody else's trainer."""

    def __init__(
        self, sparsity: float | None, accelerate: bool, options: Mapping[str, Any]
    ) -> None:
        known = [name for name in inspect.signature(prune).parameters if name not in TAKEN]
        for name in options:
            if name not in known:
                raise nearest("option of Snip", name, known)
        # A network that holds masks is not pruned, and needs no sparsity.
        settings = {name: value for name, value in options.items() if name not in OF_NETWORK}
        if sparsity is not None:
            checked_request(sparsity=sparsity, **settings)
        self.sparsity, self.accelerate, self.options = sparsity, accelerate, dict(options)
        self.masks: Masks | None = None  # of the network that is or was trained
        self.given: Masks | None = None  # from a checkpoint, for the next start
        self._inputs: Any = None  # of a call of the network, once there was one

    def start(
        self,
        network: nn.Module,
        first: Callable[[], Any],
        loss: Callable[[Any], torch.Tensor],
        processes: int = 1,
    ) -> Masks:
        """Hold the masks of a checkpoint, or those that the network has, or prune it on a batch.

        `first` gives the first batch, `loss` its loss. Several processes prune together, each on
        its own first batch: those of torch's process group, as many as the trainer has.
        """
        network, ranks = unwrap(network), _as_many(processes)
        given, batch = self.options.get("loss_fn"), None
        loss = loss if given is None else partial(given, network)
        # Not `self.masks`: this may be another network than the last one.
        masks, self.given = self.given or held_masks(network), None
        ranks.agree({"masks": "none" if masks is None else masks.digest()}, SAME)
        fast = self.accelerate and ranks.alone
        if masks is None or fast:
            with ranks.raise_on_all(), undisturbed(network):
                batch = first()
                if batch is None:
                    raise InputError("the training data has no batch to prune on: it is empty.")
                device = device_of(network)
                batch = mapped(batch, lambda tensor: tensor.to(device))
        if masks is None:
            masks = self._pruned(network, ranks, batch, loss)
        masks.apply(network)
        if fast and self._inputs is None:
            with _noted(network, self), undisturbed(network), torch.no_grad():
                loss(batch)
        self.masks = masks
        return masks

    def speed_up(
        self, network: nn.Module, optimizers: Iterable[torch.optim.Optimizer], processes: int = 1
    ) -> None:
        """Accelerate the network where it stands, if that was asked for and pays."""
        inputs, self._inputs = self._inputs, None
        if not self.accelerate:
            return
        if processes > 1:
            warn("running dense: several processes share this network's ordinary parameters.")
        elif inputs is None:
            warn(
                f"running dense: the loss calls parts of {type(unwrap(network)).__name__}, never "
                "the network itself, so that there is nothing to accelerate."
            )
        else:
            accelerate_in_place(network, inputs, optimizers)

    def finish(self, network: nn.Module, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Make the network an ordinary one, which holds its masks."""
        densify_in_place(network, optimizers)

    def state_dict(self) -> dict[str, Any]:
        """The masks for a checkpoint: tensors and text, which torch loads with `weights_only`."""
        masks = self.given or self.masks
        if masks is None:
            return {}
        return {"masks": dict(masks), "provenance": json.dumps(masks.provenance.to_dict())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the masks of a checkpoint: the network is not pruned again."""
        if state:
            about = Provenance.from_dict(json.loads(state["provenance"]))
            self.given = Masks(state["masks"], about)

    def _pruned(
        self, network: nn.Module, ranks: Ranks, batch: Any, loss: Callable[[Any], Any]
    ) -> Masks:
        settings = {**self.options, "loss_fn": lambda _network, batch: loss(batch)}
        # The trainer wraps the network elsewhere.
        with ranks.raise_on_all():
            whole = Network.of(network, settings.pop("params", None), replicas=ranks)
        with _noted(network, self):
            # In a list: of a batch that is a list of tensors no other meaning is possible then.
            return prune(whole, [batch], sparsity=self.sparsity, **settings)


@contextmanager
def _noted(network: nn.Module, pruning: Pruning) -> Iterator[None]:
    """Record the inputs of the first call of the network, if it will be accelerated."""

    def note(_network: nn.Module, args: Any, kwargs: Any) -> None:
        if pruning._inputs is None:
            call = Call(args, kwargs).map(lambda tensor: tensor.detach())
            pruning._inputs = call.inputs(network)

    if not pruning.accelerate:
        yield
        return
    handle = network.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _as_many(processes: int) -> Ranks:
    """The ranks of a trainer, which must be those of torch's process group."""
    ranks = everybody() if processes > 1 else ALONE
    if ranks.size != processes:
        raise InputError(
            f"the trainer has {processes} processes, and torch's process group {ranks.size}: only "
            "those that torch.distributed connects can prune together. Prune before training, in "
            "one process: a model that holds masks is not pruned again."
        )
    return ranks


def first_of(loader: Any) -> Any:
    """Read the first batch of a data loader, and put its generators back."""
    base = getattr(loader, "base_dataloader", loader)  # Accelerate's counts who iterates over it
    parts = (base, getattr(base, "sampler", None))
    known = [getattr(part, "generator", None) for part in parts]
    known.append(getattr(loader, "synchronized_generator", None))
    generators = [one for one in known if isinstance(one, torch.Generator)]
    states = [one.get_state() for one in generators]
    try:
        if getattr(loader, "rng_types", None) is not None:
            # All processes shuffle alike, as when Accelerate's loader itself is iterated over: each
            # takes its own part of one order, which has no sample twice.
            utilities = imported("accelerate.utils", "pruning with Accelerate", "transformers")
            utilities.synchronize_rng_states(loader.rng_types, loader.synchronized_generator)
        return next(iter(base), None)
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def own_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """The loss that a model of transformers computes itself, given labels."""
    outputs = model(**batch) if isinstance(batch, Mapping) else model(*batch)
    loss = getattr(outputs, "loss", None)
    if loss is None:
        raise InputError(
            f"{type(model).__name__} returned no loss for the first batch: put labels into the "
            "data, or give Snip(..., loss_fn=lambda model, batch: ...)."
        )
    return loss


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
    """Turn `network` into `other`; optimisers get its parameters, and states in their shapes."""
    names: dict[torch.Tensor, str] = {p: name for name, p in network.named_parameters()}
    # Bypass a `__setattr__` of the user's. The dict is shared: a part of the network that refers to
    # the whole, which is `other`, sees the same.
    object.__setattr__(network, "__class__", other.__class__)
    object.__setattr__(network, "__dict__", vars(other))
    new = dict(network.named_parameters())
    for optimizer in optimizers:
        optimizer = torchs_own(optimizer)
        for group in optimizer.param_groups:
            # A bias with no survivors is no parameter of an accelerated network. The old one keeps
            # its place, without a gradient, so that states of both networks fit.
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
    """Storage of the surviving weights of each parameter of a sparse layer, by name."""
    return {
        f"{prefix}.{key}" if prefix else key: one
        for prefix, module in network.named_modules()
        if isinstance(module, PackedModule)
        for key, one in module.packed.items()
    }


def _changed(part: Any, shape: torch.Size, change: Change) -> Any:
    """Change a part of an optimiser's state if it has a value for each weight."""
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
