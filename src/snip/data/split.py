"""Images and labels, whole in memory as bytes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from snip.common.errors import InputError, KindError


@dataclass(frozen=True, eq=False)
class Split:
    """One part of a data set: uint8 images [N, C, H, W] and int64 labels [N]."""

    images: torch.Tensor
    labels: torch.Tensor

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            raise KindError(
                f"images are {self.images.dtype} {list(self.images.shape)}: "
                "pass uint8 [N, channels, height, width], values 0 to 255."
            )
        if self.labels.dtype != torch.int64 or self.labels.ndim != 1:
            raise KindError(
                f"labels are {self.labels.dtype} {list(self.labels.shape)}: pass int64 [N]."
            )
        if len(self.images) != len(self.labels):
            raise InputError(
                f"{len(self.images)} images but {len(self.labels)} labels: pass one label each."
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"Split({len(self)} images of {list(self.images.shape[1:])})"

    def take(self, rows: torch.Tensor) -> Split:
        """A copy of these rows."""
        return Split(self.images[rows], self.labels[rows])

    def subset(self, count: int) -> Split:
        """The first `count` images, without a copy."""
        if not 0 <= count <= len(self):
            raise InputError(f"count is {count}: this split has {len(self)} images.")
        return Split(self.images[:count], self.labels[:count])
