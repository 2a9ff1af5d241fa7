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

from snip.algorithm import prune
from snip.anatomy.calling import inputs_of, mapped
from snip.anatomy.device import device_of
from snip.anatomy.parameters import unwrap
from snip.anatomy.undisturbed import undisturbed
from snip.common.errors import InputError, nearest, warn
from snip.integrations.in_place import accelerate_in_place, densify_in_place
from snip.masks import Masks, Provenance, held_masks

TAKEN = ("model", "batches", "sparsity", "training")  # of `prune`, what a trainer decides itself


class Pruning:
    """The pruning of one network in somebody else's trainer."""

    def __init__(
        self, sparsity: float | None, accelerate: bool, options: Mapping[str, Any]
    ) -> None:
        known = [name for name in inspect.signature(prune).parameters if name not in TAKEN]
        for name in options:
            if name not in known:
                raise nearest("option of Snip", name, known)
        self.sparsity, self.accelerate, self.options = sparsity, accelerate, dict(options)
        self.masks: Masks | None = None
        self._inputs: Any = None  # what the network was called with, if it was called

    def start(
        self,
        network: nn.Module,
        first: Callable[[], Any],
        loss: Callable[[Any], torch.Tensor],
        share: Callable[[Any], Any] = lambda masks: masks,
        main: bool = True,
    ) -> Masks:
        """Hold the masks of a checkpoint, or those that the network has, or prune it on a batch.

        `first` gives the first batch, `loss` its loss. Of several processes only the `main` one
        prunes, and `share` gives what it found to the others.
        """
        network = unwrap(network)
        given, batch = self.options.get("loss_fn"), None
        loss = loss if given is None else partial(given, network)
        masks = held_masks(network) if self.masks is None else self.masks
        if masks is None or self.accelerate:
            with undisturbed(network):
                batch = _on_device(first(), device_of(network))
        if masks is None:
            masks = share(self._pruned(network, batch, loss) if main else None)
        masks.apply(network)
        if self.accelerate and self._inputs is None:
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
            warn("running dense: DDP was set up for the ordinary parameters of this network.")
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
        if self.masks is None:
            return {}
        about = json.dumps(self.masks.provenance.to_dict())
        return {"masks": dict(self.masks), "provenance": about}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the masks of a checkpoint over: the network is not pruned again."""
        if state:
            about = Provenance.from_dict(json.loads(state["provenance"]))
            self.masks = Masks(state["masks"], about)

    def _pruned(self, network: nn.Module, batch: Any, loss: Callable[[Any], Any]) -> Masks:
        settings = {**self.options, "loss_fn": lambda _network, batch: loss(batch)}
        with _noted(network, self):
            # In a list: of a batch that is a list of tensors no other meaning is possible then.
            return prune(network, [batch], sparsity=self.sparsity, **settings)


@contextmanager
def _noted(network: nn.Module, pruning: Pruning) -> Iterator[None]:
    """Note what the network is called with, if it will be accelerated."""

    def note(_network: nn.Module, args: Any, kwargs: Any) -> None:
        if pruning._inputs is None:
            call = mapped((args, kwargs), lambda tensor: tensor.detach())
            pruning._inputs = inputs_of(network, call)

    if not pruning.accelerate:
        yield
        return
    handle = network.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _on_device(batch: Any, device: torch.device) -> Any:
    if batch is None:
        raise InputError("the training data has no batch to prune on: it is empty.")
    return mapped(batch, lambda tensor: tensor.to(device))


def first_of(loader: Iterable[Any]) -> Any:
    """The first batch of a data loader, whose own random numbers are left as they were."""
    loader = getattr(loader, "base_dataloader", loader)  # Accelerate's counts who iterates over it
    owners = (loader, getattr(loader, "sampler", None))
    states = [
        (generator, generator.get_state())
        for generator in (getattr(owner, "generator", None) for owner in owners)
        if isinstance(generator, torch.Generator)
    ]
    try:
        return next(iter(loader), None)
    finally:
        for generator, state in states:
            generator.set_state(state)


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
