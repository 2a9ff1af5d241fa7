"""What all trainers share: prune on the first batch, once; put saved masks back; accelerate."""

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
from snip.distributed.wrappers import unwrap
from snip.integrations.in_place import accelerate_in_place, densify_in_place
from snip.masks import Masks, Provenance, held_masks
from snip.network.calls import Call, device_of, mapped
from snip.network.network import Network
from snip.network.untouched import undisturbed

TAKEN = ("model", "batches", "sparsity", "training")  # of `prune`, what a trainer decides itself
OF_NETWORK = ("loss_fn", "params")  # options that only a network shows to be right or wrong
SAME = "Load the same checkpoint, or the same pruned model, in every process."


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
        self.given: Masks | None = None  # those of a checkpoint, for the next start
        self._inputs: Any = None  # what the network was called with, if it was called

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
        ranks.agree({"masks": _named(masks)}, SAME)
        fast = self.accelerate and ranks.alone
        if masks is None or fast:
            with ranks.together(), undisturbed(network):
                batch = _on_device(first(), device_of(network))
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
        """Take the masks of a checkpoint over: the network is not pruned again."""
        if state:
            about = Provenance.from_dict(json.loads(state["provenance"]))
            self.given = Masks(state["masks"], about)

    def _pruned(
        self, network: nn.Module, ranks: Ranks, batch: Any, loss: Callable[[Any], Any]
    ) -> Masks:
        settings = {**self.options, "loss_fn": lambda _network, batch: loss(batch)}
        # The trainer wraps the network elsewhere.
        whole = Network.of(network, settings.pop("params", None), replicas=ranks)
        with _noted(network, self):
            # In a list: of a batch that is a list of tensors no other meaning is possible then.
            return prune(whole, [batch], sparsity=self.sparsity, **settings)


@contextmanager
def _noted(network: nn.Module, pruning: Pruning) -> Iterator[None]:
    """Note what the network is called with, if it will be accelerated."""

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
    """The processes of a trainer, which must be those of torch's process group."""
    ranks = everybody() if processes > 1 else ALONE
    if ranks.size != processes:
        raise InputError(
            f"the trainer has {processes} processes, and torch's process group {ranks.size}: only "
            "those that torch.distributed connects can prune together. Prune before training, in "
            "one process: a model that holds masks is not pruned again."
        )
    return ranks


def _named(masks: Masks | None) -> str:
    return "none" if masks is None else masks.digest()


def _on_device(batch: Any, device: torch.device) -> Any:
    if batch is None:
        raise InputError("the training data has no batch to prune on: it is empty.")
    return mapped(batch, lambda tensor: tensor.to(device))


def first_of(loader: Iterable[Any]) -> Any:
    """The first batch of a data loader, whose own random numbers are left as they were."""
    base = getattr(loader, "base_dataloader", loader)  # Accelerate's counts who iterates over it
    found = [getattr(one, "generator", None) for one in (base, getattr(base, "sampler", None))]
    found.append(getattr(loader, "synchronized_generator", None))
    generators = [one for one in found if isinstance(one, torch.Generator)]
    states = [one.get_state() for one in generators]
    try:
        _draw_alike(loader)
        return next(iter(base), None)
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def _draw_alike(loader: Any) -> None:
    """Let all processes shuffle alike, as Accelerate does when its loader itself is iterated over:
    each takes its own part of one order, which has no sample twice."""
    if getattr(loader, "rng_types", None) is not None:
        utilities = imported("accelerate.utils", "pruning with Accelerate", "transformers")
        utilities.synchronize_rng_states(loader.rng_types, loader.synchronized_generator)


def own_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """The loss that a model of transformers computes itself, given labels."""
    found = model(**batch) if isinstance(batch, Mapping) else model(*batch)
    loss = getattr(found, "loss", None)
    if loss is None:
        raise InputError(
            f"{type(model).__name__} returned no loss for the first batch: put labels into the "
            "data, or give Snip(..., loss_fn=lambda model, batch: ...)."
        )
    return loss
