"""Make torchvision importable beside a torch without CUDA: import this before its users.

torchvision adds rules to two of its compiled operators when it is imported. Its library of
operators does not load beside CPU torch, so the import fails because the two operators have no
names, and the imports of timm, transformers and Lightning fail with it. The names are declared
here only then: where the library loads it declares them itself, and twice is an error.
"""

from __future__ import annotations

import torch

try:
    import torchvision  # noqa: F401
except ModuleNotFoundError:
    pass  # not installed: the import that needs it fails
except RuntimeError:  # operator torchvision::nms does not exist
    DECLARED = torch.library.Library("torchvision", "FRAGMENT")  # kept: the names go with it
    for _name in ("nms", "qnms"):
        DECLARED.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
