"""timm, torchvision and transformers beside a torch without CUDA."""

from __future__ import annotations

import torchvision_names  # noqa: F401, I001  before the others

import timm
import torchvision
import transformers

__all__ = ["timm", "torchvision", "transformers"]
