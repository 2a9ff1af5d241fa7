"""What the layers of a network are given and give; refused are layers that cannot be watched so."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from snip.common.errors import InputError
from snip.methods.layers import is_batched, matrices, not_taken, parameter_of
from snip.network.untouched import undisturbed

Call = tuple[torch.Tensor, torch.Tensor]  # the input of a layer, and its output


def given(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.Tensor:
    """The input of a linear layer or convolution, also if it was called as layer(input=x)."""
    tensor: torch.Tensor = args[0] if args else kwargs["input"]
    return tensor


@contextmanager
def hooked(layers: Mapping[str, nn.Module], hook: Callable[[str], Any]) -> Iterator[None]:
    """Inside the block, each layer has the forward hook `hook(name)`, with keyword arguments.

    It comes before the hooks of others, which may make something else of what the layer gives.
    """
    handles = [
        layer.register_forward_hook(hook(name), prepend=True, with_kwargs=True)
        for name, layer in layers.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def watched(
    layers: Mapping[str, nn.Module], see: Callable[[str, torch.Tensor, torch.Tensor], None]
) -> Iterator[None]:
    """Inside the block, `see(name, input, output)` at each call of a layer, and nothing is kept."""

    def hook(name: str) -> Any:
        def seen(_layer: nn.Module, args: Any, kwargs: Any, output: torch.Tensor) -> None:
            see(name, given(args, kwargs), output)

        return seen

    with hooked(layers, hook):
        yield


@contextmanager
def recorded(layers: Mapping[str, nn.Module]) -> Iterator[dict[str, list[Call]]]:
    """Inside the block, a list of (input, output) of each call of each layer.

    A layer passes on a copy of its output, which a later operation may then write to.
    """
    calls: dict[str, list[Call]] = {name: [] for name in layers}

    def hook(name: str) -> Any:
        def record(_layer: nn.Module, args: Any, kwargs: Any, output: torch.Tensor) -> torch.Tensor:
            calls[name].append((given(args, kwargs).detach(), output))
            return output.clone()

        return record

    with hooked(layers, hook):
        yield calls


@torch.enable_grad()
def require_seen(
    method: str, model: nn.Module, weights: Mapping[str, nn.Parameter], inputs: torch.Tensor
) -> None:
    """Refuse a model that computes with one of these weights but does not call its layer."""
    layers = matrices(model, weights)
    called: set[str] = set()
    with undisturbed(model):
        model.eval()
        with watched(layers, lambda name, _input, _output: called.add(name)):
            answer = model(inputs)
    require_called(method, weights, layers, called, answer)


def require_called(
    method: str,
    weights: Mapping[str, nn.Parameter],
    layers: Mapping[str, nn.Module],
    called: Collection[str],
    answer: torch.Tensor,
) -> None:
    """Refuse a layer that was not called though the answer depends on a parameter of it."""
    owners = {
        full: layer
        for name, layer in layers.items()
        for key in ("weight", "bias")
        if name not in called and (full := parameter_of(name, key)) in weights
    }
    if not owners or not answer.requires_grad:
        return
    of = [weights[name] for name in owners]
    found = torch.autograd.grad(answer.sum(), of, retain_graph=True, allow_unused=True)
    for (name, layer), gradient in zip(owners.items(), found, strict=True):
        if gradient is not None:
            why = (
                "it watches what a layer is given and gives, but the network computes with this "
                "parameter without calling the layer"
            )
            raise not_taken(method, name, layer, why)


def require_images(
    method: str,
    weights: Mapping[str, nn.Parameter],
    layers: Mapping[str, nn.Module],
    calls: Mapping[str, list[Call]],
    images: int,
) -> None:
    """Refuse a layer whose inputs are not one per image, the batch first."""
    for name, layer in layers.items():
        for inputs, _ in calls[name]:
            if len(inputs) == images and is_batched(layer, inputs):
                continue
            own = (parameter_of(name, key) for key in ("weight", "bias"))
            why = (
                f"it needs to know which image an input belongs to, but for {images} images the "
                f"layer was given {list(inputs.shape)}, in place of [{images}, ...]"
            )
            raise not_taken(method, next(n for n in own if n in weights), layer, why)


def require_logits(method: str, logits: Any, images: int) -> None:
    """Refuse answers other than one row of finite logits per image."""
    shape = list(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
    if not isinstance(logits, torch.Tensor) or logits.ndim != 2 or len(logits) != images:
        raise InputError(
            f"method {method!r} needs logits [images, classes], but for {images} images the "
            f"network gives {shape}: let it give one row of logits per image, or use another "
            "method, such as 'lwc' or 'snip'."
        )
    if not torch.isfinite(logits).all():
        raise InputError(
            f"method {method!r} cannot rank: of the logits {int((~torch.isfinite(logits)).sum())} "
            f"of {logits.numel()} are NaN or infinite. Look for such values in the data and in the "
            "weights."
        )
