"""AlexNet-s and AlexNet-b: the paper's appendix table, stride 2 in place of pooling."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from snip.models.padding import same_conv
from snip.models.spec import Images

CONVS = ((96, 11), (256, 5), (384, 3), (384, 3), (256, 3))  # (channels, kernel)


class AlexNet(nn.Module):
    """Five strided convolutions down to 1x1x256, then two hidden layers of 1024k."""

    def __init__(self, images: Images, *, k: int) -> None:
        super().__init__()
        self.features = nn.Sequential(_features(images))
        width = 1024 * k  # the paper's text says 512k, but its table and its counts say 1024k
        self.classifier = nn.Sequential(
            OrderedDict(
                fc1=nn.Linear(CONVS[-1][0], width),
                norm1=nn.BatchNorm1d(width),
                relu1=nn.ReLU(),
                fc2=nn.Linear(width, width),
                norm2=nn.BatchNorm1d(width),
                relu2=nn.ReLU(),
                fc3=nn.Linear(width, images.classes),
            )
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images).flatten(1))


def _features(images: Images) -> OrderedDict[str, nn.Module]:
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    channels, size = images.channels, images.size
    for i, (outputs, kernel) in enumerate(CONVS, start=1):
        # The first stride is 2 on 32x32 and doubled on 64x64, so both go 16, 8, 4, 2, 1.
        stride = images.size // 16 if i == 1 else 2
        for role, module in same_conv(channels, outputs, kernel, stride=stride, size=size):
            layers[f"{role}{i}"] = module
        layers[f"norm{i}"] = nn.BatchNorm2d(outputs)
        layers[f"relu{i}"] = nn.ReLU()
        channels, size = outputs, -(-size // stride)
    return layers
