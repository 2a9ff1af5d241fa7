"""LeNet-300-100 and LeNet-5-Caffe."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from snip.models.spec import Images


class LeNet300100(nn.Module):
    """784-300-100-10 with ReLU."""

    def __init__(self, images: Images) -> None:
        super().__init__()
        self.fc1 = nn.Linear(images.channels * images.size**2, 300)
        self.fc2 = nn.Linear(300, 100)
        self.fc3 = nn.Linear(100, images.classes)

    def forward(self, images: Tensor) -> Tensor:
        hidden = F.relu(self.fc1(images.flatten(1)))
        hidden = F.relu(self.fc2(hidden))
        return self.fc3(hidden)


class LeNet5Caffe(nn.Module):
    """Two 5x5 convolutions with max pooling, then 800-500-10.

    As in Caffe's example and the authors' code, no ReLU follows the convolutions unless `relu`.
    """

    relu = False  # also of a network that was pickled before there was a choice

    def __init__(self, images: Images, *, relu: bool = False) -> None:
        super().__init__()
        self.relu = relu
        self.conv1 = nn.Conv2d(images.channels, 20, 5)  # 28 -> 24, pooled 12
        self.conv2 = nn.Conv2d(20, 50, 5)  # 12 -> 8, pooled 4
        self.fc1 = nn.Linear(50 * 4 * 4, 500)
        self.fc2 = nn.Linear(500, images.classes)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self._convolved(self.conv1, images)
        hidden = self._convolved(self.conv2, hidden)
        hidden = F.relu(self.fc1(hidden.flatten(1)))
        return self.fc2(hidden)

    def _convolved(self, conv: nn.Conv2d, images: Tensor) -> Tensor:
        hidden = F.max_pool2d(conv(images), 2)
        # ReLU and max pooling may be exchanged, and after pooling there are fewer numbers.
        return F.relu(hidden) if self.relu else hidden
