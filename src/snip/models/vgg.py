"""VGG-C, VGG-D and VGG-like: the paper's appendix table, batch norm and no dropout."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from snip.models.padding import same_conv
from snip.models.spec import Images

GROUPS = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))  # (channels, convolutions), then a pool
HIDDEN = 512


class VGG(nn.Module):
    """Thirteen convolutions in five pooled groups down to 1x1x512, then the hidden layers."""

    def __init__(self, images: Images, *, third_kernel: int = 3, hidden_layers: int = 2) -> None:
        super().__init__()
        self.features = nn.Sequential(_features(images, third_kernel))
        self.classifier = nn.Sequential(_classifier(hidden_layers, images.classes))

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images).flatten(1))


def _features(images: Images, third_kernel: int) -> OrderedDict[str, nn.Module]:
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    channels, size = images.channels, images.size
    for group, (outputs, depth) in enumerate(GROUPS, start=1):
        for i in range(1, depth + 1):
            # The first stride is 1 on 32x32 and doubled on 64x64: from there on all is the same.
            stride = images.size // 32 if not layers else 1
            kernel = third_kernel if i == 3 else 3
            for role, module in same_conv(channels, outputs, kernel, stride=stride, size=size):
                layers[f"{role}{group}_{i}"] = module
            layers[f"norm{group}_{i}"] = nn.BatchNorm2d(outputs)
            layers[f"relu{group}_{i}"] = nn.ReLU()
            channels, size = outputs, size // stride
        layers[f"pool{group}"] = nn.MaxPool2d(2)
        size //= 2
    return layers


def _classifier(hidden_layers: int, classes: int) -> OrderedDict[str, nn.Module]:
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for i in range(1, hidden_layers + 1):
        layers[f"fc{i}"] = nn.Linear(GROUPS[-1][0] if i == 1 else HIDDEN, HIDDEN)
        layers[f"norm{i}"] = nn.BatchNorm1d(HIDDEN)
        layers[f"relu{i}"] = nn.ReLU()
    layers[f"fc{hidden_layers + 1}"] = nn.Linear(HIDDEN, classes)
    return layers
