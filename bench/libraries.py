"""timm, torchvision and transformers beside a torch without CUDA.

torchvision's wheel adds rules to two of its own compiled operators when it is imported. Its
library of operators does not load beside CPU torch, so that the import fails for want of the two
names, and with it timm's and transformers'. Declared here first, they are found.
"""

from __future__ import annotations

import importlib
from types import ModuleType

import torch

DECLARED = torch.library.Library("torchvision", "FRAGMENT")  # kept: the names go with it
for _name in ("nms", "qnms"):
    if not hasattr(torch.ops.torchvision, _name):
        DECLARED.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

LIBRARIES = ("timm", "torchvision", "transformers")


def __getattr__(name: str) -> ModuleType:
    """A library, imported when it is first asked for: each of them takes a second or more."""
    if name not in LIBRARIES:
        raise AttributeError(name)
    return importlib.import_module(name)
