"""timm, torchvision and transformers beside any torch, also one without CUDA."""

from __future__ import annotations

import importlib
from types import ModuleType

import torchvision_names  # noqa: F401  before the two that import torchvision

LIBRARIES = ("timm", "torchvision", "transformers")


def __getattr__(name: str) -> ModuleType:
    """A library, imported when it is first asked for: each of them takes a second or more."""
    if name not in LIBRARIES:
        raise AttributeError(name)
    return importlib.import_module(name)
