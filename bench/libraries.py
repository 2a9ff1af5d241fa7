"""timm, torchvision and transformers beside a torch without CUDA."""

from __future__ import annotations

import torchvision_names  # noqa: F401  before the others, which import torchvision

# isort: split
import timm
import torchvision
import transformers

__all__ = ["timm", "torchvision", "transformers"]
