"""WRN-16-8, WRN-16-10, WRN-22-8 (Zagoruyko and Komodakis 2016): pre-activation, no dropout."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from snip.models.spec import Images


class Block(nn.Module):
    """norm, ReLU, 3x3, norm, ReLU, 3x3, plus the input (through a 1x1 where the shape changes)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.shortcut: nn.Module | None = None
        if inputs != outputs or stride != 1:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        active = F.relu(self.norm1(inputs))
        residual = self.conv2(F.relu(self.norm2(self.conv1(active))))
        # A projection reads the activated input, as in the original code; an identity the raw one.
        return residual + (inputs if self.shortcut is None else self.shortcut(active))


class WideResNet(nn.Module):
    """A 3x3 convolution, then three groups of (depth - 4) / 6 blocks, `widen` times as wide."""

    def __init__(self, images: Images, *, depth: int, widen: int) -> None:
        super().__init__()
        widths = (16 * widen, 32 * widen, 64 * widen)
        blocks = (depth - 4) // 6
        # Stride 1 on 32x32, doubled on 64x64 like that of the other networks.
        self.conv1 = nn.Conv2d(images.channels, 16, 3, images.size // 32, padding=1, bias=False)
        self.group1 = _group(16, widths[0], blocks, stride=1)
        self.group2 = _group(widths[0], widths[1], blocks, stride=2)
        self.group3 = _group(widths[1], widths[2], blocks, stride=2)
        self.norm = nn.BatchNorm2d(widths[2])
        self.fc = nn.Linear(widths[2], images.classes)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.group3(self.group2(self.group1(self.conv1(images))))
        hidden = F.relu(self.norm(hidden)).mean(dim=(2, 3))
        return self.fc(hidden)


def _group(inputs: int, outputs: int, blocks: int, *, stride: int) -> nn.Sequential:
    rest = [Block(outputs, outputs, 1) for _ in range(blocks - 1)]
    return nn.Sequential(Block(inputs, outputs, stride), *rest)
