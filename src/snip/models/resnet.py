"""ResNet-20 for CIFAR (He et al. 2016), with 1x1 projections where a shortcut changes shape.

The authors pad such shortcuts with zeros on CIFAR (their option A). A projection (option B) adds
2,560 weights, and is a layer that can be pruned, shrunk and accelerated like any other.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from snip.models.spec import Images

BLOCKS = 3  # in each stage: 1 + 3 stages * 3 blocks * 2 + 1 = 20 layers, projections not counted


class Block(nn.Module):
    """3x3, norm, ReLU, 3x3, norm, plus the input (through a 1x1 where the shape changes), ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module | None = None
        if inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(outputs))

    def forward(self, inputs: Tensor) -> Tensor:
        residual = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(inputs)))))
        return F.relu(residual + (inputs if self.shortcut is None else self.shortcut(inputs)))


class ResNet20(nn.Module):
    """A 3x3 convolution, then three stages of 16, 32 and 64 channels, each half as large."""

    def __init__(self, images: Images) -> None:
        super().__init__()
        # Stride 1 on 32x32, doubled on 64x64 like that of the other networks.
        self.conv1 = nn.Conv2d(images.channels, 16, 3, images.size // 32, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(16)
        self.stage1 = _stage(16, 16, stride=1)
        self.stage2 = _stage(16, 32, stride=2)
        self.stage3 = _stage(32, 64, stride=2)
        self.fc = nn.Linear(64, images.classes)

    def forward(self, images: Tensor) -> Tensor:
        hidden = F.relu(self.norm1(self.conv1(images)))
        hidden = self.stage3(self.stage2(self.stage1(hidden)))
        return self.fc(hidden.mean(dim=(2, 3)))


def _stage(inputs: int, outputs: int, *, stride: int) -> nn.Sequential:
    rest = [Block(outputs, outputs, 1) for _ in range(BLOCKS - 1)]
    return nn.Sequential(Block(inputs, outputs, stride), *rest)
