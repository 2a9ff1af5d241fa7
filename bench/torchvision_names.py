"""Libraries that import torchvision, beside a torch without CUDA: import this before them.

torchvision's wheel adds rules to two of its own compiled operators when it is imported. Its
library of operators does not load beside CPU torch, so that the import fails for want of the two
names, and with it timm's, transformers' and Lightning's. Declared here first, they are found.
"""

from __future__ import annotations

import torch

DECLARED = torch.library.Library("torchvision", "FRAGMENT")  # kept: the names go with it
for _name in ("nms", "qnms"):
    if not hasattr(torch.ops.torchvision, _name):
        DECLARED.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
