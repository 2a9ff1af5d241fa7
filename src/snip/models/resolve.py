"""Make a network from its name: one of the table, or a user's "package.module:function"."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from snip.common.errors import InputError, KindError, nearest
from snip.common.text import unforeseen
from snip.models import IMAGES, Images, build
from snip.models.initializers import initialize
from snip.network.untouched import restored_modes

OWN = "own"  # initialiser of a user's network: keep what its function draws


def resolve_model(spec: str, dataset: str, *, seed: int = 0) -> nn.Module:
    """Make the network that `spec` names for a data set, drawn with `seed`."""
    if ":" not in spec:
        return build(spec, dataset=dataset, seed=seed)
    if dataset not in IMAGES:
        raise nearest("data set", dataset, IMAGES)
    with _current_folder_importable(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _call(spec, _find(spec), dataset)
        _check_output(spec, model, IMAGES[dataset])
    return model


def draw_network(spec: str, dataset: str, *, initializer: str, seed: int) -> nn.Module:
    """Make a network with weights drawn by the named rule, or by its own function."""
    model = resolve_model(spec, dataset, seed=seed)
    if initializer != OWN:
        initialize(model, initializer, seed=seed)
    return model


def redraw_network(
    model: nn.Module, spec: str, dataset: str, *, initializer: str, seed: int
) -> None:
    """Replace the weights of `model` by those of a new draw."""
    fresh = draw_network(spec, dataset, initializer=initializer, seed=seed)
    model.load_state_dict(fresh.state_dict())


def _find(spec: str) -> Callable[..., Any]:
    """Import the user's function, or say what to give instead."""
    name, _, attribute = spec.partition(":")
    if not name:
        raise InputError(f"{spec!r} names no module: give a network as package.module:function.")
    if name.endswith(".py"):
        file = Path(os.path.relpath(name))
        outside = ".." in file.parts
        path = ".".join((file.stem,) if outside else file.with_suffix("").parts)
        where = f" in the folder {file.parent}" if outside else ""
        raise InputError(
            f"{spec!r} names a file, and a network is given by its module. "
            f"Write {f'{path}:{attribute}'!r}{where}."
        )
    module = _module(name)
    if not hasattr(module, attribute):
        own = [
            key
            for key, value in vars(module).items()
            if key[0] != "_" and callable(value) and getattr(value, "__module__", None) == name
        ]
        raise nearest(f"function of {name}", attribute, own)
    function = getattr(module, attribute)
    if isinstance(function, nn.Module):
        kind = type(function).__name__
        raise KindError(
            f"{spec} is a network already, a {kind}, whose weights no seed can draw again: give "
            f"what makes it, its class or a function. Write in {name}.py, for one, "
            f"`def build(): return {kind}(...)`, and give {name}:build."
        )
    if not callable(function):
        raise KindError(
            f"{spec} is a {type(function).__name__}, not a function that returns a network: give "
            "one, or a network's class."
        )
    return function


def _module(name: str) -> ModuleType:
    importlib.invalidate_caches()  # the user's file may have been written a moment ago
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise InputError(f"importing {name!r} failed: {error}. Install it first.") from error
        raise InputError(
            f"there is no module {error.name!r}, looked for in the current folder and among the "
            "installed packages; a network is given as package.module:function."
        ) from error
    except Exception as error:
        raise InputError(f"importing {name!r} failed: {_described(error)}.") from error


def _call(spec: str, function: Callable[..., Any], dataset: str) -> nn.Module:
    """Call the user's function with those of our values that it has as parameters."""
    images = IMAGES[dataset]
    offered = {
        "dataset": dataset,
        "classes": images.classes,
        "channels": images.channels,
        "size": images.size,
    }
    try:
        wanted = inspect.signature(function).parameters
    except (TypeError, ValueError):  # some built-in callables have no signature
        wanted = inspect.Signature().parameters
    given = {name: value for name, value in offered.items() if name in wanted}
    try:
        model = function(**given)
    except Exception as error:
        raise InputError(
            f"{spec} failed: {_described(error)}. It is called with those of "
            f"{', '.join(offered)} that it has as parameters; others need a default."
        ) from error
    if not isinstance(model, nn.Module):
        raise KindError(
            f"{spec} returned a {type(model).__name__}: it must return a torch.nn.Module."
        )
    return model


@torch.no_grad()
def _check_output(spec: str, model: nn.Module, images: Images) -> None:
    """Raise if the network does not return logits of all classes for two blank images."""
    shape = (2, images.channels, images.size, images.size)
    with restored_modes(model):
        model.eval()
        try:
            output = model(torch.zeros(shape))
        except Exception as error:
            raise InputError(
                f"the network of {spec} does not take images of shape {shape}: {_described(error)}."
            ) from error
    result = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
    if result != (2, images.classes):
        raise InputError(
            f"the network of {spec} returns {result} for two images: "
            f"it must return logits of shape {(2, images.classes)}."
        )


def _described(error: Exception) -> str:
    return unforeseen(error).rstrip(".")


@contextmanager
def _current_folder_importable() -> Iterator[None]:
    # A console script does not have the current folder on its path, unlike `python -m`.
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)
