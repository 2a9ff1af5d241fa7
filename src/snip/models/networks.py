"""The paper's networks, and ResNet-20; all take images [batch, channels, rows, columns].

Their first stride is set for 32x32 images and doubled on 64x64: from there on all is the same.
"""

from __future__ import annotations

from collections import OrderedDict

import torch.nn.functional as F
from torch import Tensor, nn

from snip.data.spec import Images

Layers = OrderedDict[str, nn.Module]

ALEXNET_CONVS = ((96, 11), (256, 5), (384, 3), (384, 3), (256, 3))  # (channels, kernel)
VGG_GROUPS = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))  # (channels, convolutions)
VGG_HIDDEN = 512
RESNET_BLOCKS = 3  # per stage: 1 + 3 stages * 3 blocks * 2 + 1 = 20 layers, without projections


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
        # ReLU and max pooling commute, and after pooling there are fewer numbers.
        return F.relu(hidden) if self.relu else hidden


class AlexNet(nn.Module):
    """AlexNet-s, -b: five strided convolutions down to 1x1x256, then two hidden layers of 1024k.

    From the table of the paper's appendix, with strides in place of pooling.
    """

    def __init__(self, images: Images, *, k: int) -> None:
        super().__init__()
        self.features = nn.Sequential(_alexnet_features(images))
        width = 1024 * k  # the paper's text says 512k, but its table and its counts say 1024k
        self.classifier = nn.Sequential(
            OrderedDict(
                fc1=nn.Linear(ALEXNET_CONVS[-1][0], width),
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


def _alexnet_features(images: Images) -> Layers:
    layers: Layers = OrderedDict()
    channels, size = images.channels, images.size
    for i, (outputs, kernel) in enumerate(ALEXNET_CONVS, start=1):
        stride = images.size // 16 if i == 1 else 2  # maps of 16, 8, 4, 2, 1
        _add_convolution(layers, str(i), channels, outputs, kernel, stride=stride, size=size)
        channels, size = outputs, -(-size // stride)
    return layers


class VGG(nn.Module):
    """VGG-C, -D, -like: 13 convolutions in five pooled groups to 1x1x512, then hidden layers.

    From the table of the paper's appendix, with batch norm and without dropout.
    """

    def __init__(self, images: Images, *, third_kernel: int = 3, hidden_layers: int = 2) -> None:
        super().__init__()
        self.features = nn.Sequential(_vgg_features(images, third_kernel))
        self.classifier = nn.Sequential(_vgg_classifier(hidden_layers, images.classes))

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images).flatten(1))


def _vgg_features(images: Images, third_kernel: int) -> Layers:
    layers: Layers = OrderedDict()
    channels, size = images.channels, images.size
    for group, (outputs, depth) in enumerate(VGG_GROUPS, start=1):
        for i in range(1, depth + 1):
            stride = images.size // 32 if not layers else 1
            kernel = third_kernel if i == 3 else 3
            name = f"{group}_{i}"
            _add_convolution(layers, name, channels, outputs, kernel, stride=stride, size=size)
            channels, size = outputs, size // stride
        layers[f"pool{group}"] = nn.MaxPool2d(2)
        size //= 2
    return layers


def _vgg_classifier(hidden_layers: int, classes: int) -> Layers:
    layers: Layers = OrderedDict()
    for i in range(1, hidden_layers + 1):
        layers[f"fc{i}"] = nn.Linear(VGG_GROUPS[-1][0] if i == 1 else VGG_HIDDEN, VGG_HIDDEN)
        layers[f"norm{i}"] = nn.BatchNorm1d(VGG_HIDDEN)
        layers[f"relu{i}"] = nn.ReLU()
    layers[f"fc{hidden_layers + 1}"] = nn.Linear(VGG_HIDDEN, classes)
    return layers


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """(low, high) padding of one dimension so that ceil(size / stride) outputs come out.

    This is TensorFlow's `SAME`, which the authors' AlexNet and VGG use.
    """
    outputs = -(-size // stride)
    total = max((outputs - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def _add_convolution(
    layers: Layers, name: str, inputs: int, outputs: int, kernel: int, *, stride: int, size: int
) -> None:
    """Add a `SAME` convolution of size x size maps, batch norm and ReLU."""
    low, high = same_padding(size, kernel, stride)
    if low == high:
        layers[f"conv{name}"] = nn.Conv2d(inputs, outputs, kernel, stride, padding=low)
    else:
        # Stride 2 on an even map pads one more at the right and bottom than at the left and top,
        # which torch's convolutions cannot express: padding=k//2 would shift the image by a pixel.
        layers[f"pad{name}"] = nn.ZeroPad2d((low, high, low, high))
        layers[f"conv{name}"] = nn.Conv2d(inputs, outputs, kernel, stride)
    layers[f"norm{name}"] = nn.BatchNorm2d(outputs)
    layers[f"relu{name}"] = nn.ReLU()


class WideBlock(nn.Module):
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
    """WRN-depth-widen (Zagoruyko and Komodakis 2016): pre-activation, no dropout.

    A 3x3 convolution, then three groups of (depth - 4) / 6 blocks, `widen` times as wide.
    """

    def __init__(self, images: Images, *, depth: int, widen: int) -> None:
        super().__init__()
        widths = (16 * widen, 32 * widen, 64 * widen)
        blocks = (depth - 4) // 6
        self.conv1 = nn.Conv2d(images.channels, 16, 3, images.size // 32, padding=1, bias=False)
        self.group1 = _stack(WideBlock, blocks, 16, widths[0], stride=1)
        self.group2 = _stack(WideBlock, blocks, widths[0], widths[1], stride=2)
        self.group3 = _stack(WideBlock, blocks, widths[1], widths[2], stride=2)
        self.norm = nn.BatchNorm2d(widths[2])
        self.fc = nn.Linear(widths[2], images.classes)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.group3(self.group2(self.group1(self.conv1(images))))
        hidden = F.relu(self.norm(hidden)).mean(dim=(2, 3))
        return self.fc(hidden)


class ResNetBlock(nn.Module):
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
    """A 3x3 convolution, then three stages of 16, 32 and 64 channels, each half as large.

    He et al. 2016 for CIFAR, with 1x1 projections where a shortcut changes shape (their option B).
    The authors pad such shortcuts with zeros on CIFAR (option A). A projection adds 2,560 weights,
    and is a layer that can be pruned, shrunk and accelerated like any other.
    """

    def __init__(self, images: Images) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(images.channels, 16, 3, images.size // 32, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(16)
        self.stage1 = _stack(ResNetBlock, RESNET_BLOCKS, 16, 16, stride=1)
        self.stage2 = _stack(ResNetBlock, RESNET_BLOCKS, 16, 32, stride=2)
        self.stage3 = _stack(ResNetBlock, RESNET_BLOCKS, 32, 64, stride=2)
        self.fc = nn.Linear(64, images.classes)

    def forward(self, images: Tensor) -> Tensor:
        hidden = F.relu(self.norm1(self.conv1(images)))
        hidden = self.stage3(self.stage2(self.stage1(hidden)))
        return self.fc(hidden.mean(dim=(2, 3)))


def _stack(
    block: type[WideBlock] | type[ResNetBlock],
    blocks: int,
    inputs: int,
    outputs: int,
    *,
    stride: int,
) -> nn.Sequential:
    rest = [block(outputs, outputs, 1) for _ in range(blocks - 1)]
    return nn.Sequential(block(inputs, outputs, stride), *rest)


class RowReader(nn.Module):
    """LSTM-s, -b and GRU-s, -b: read an image row by row and classify the last state.

    A linear layer per row, a recurrent layer over the rows, a linear layer on its last state. The
    first is not in the paper's text, but its parameter counts include it.
    """

    def __init__(
        self,
        images: Images,
        *,
        cell: type[nn.LSTM] | type[nn.GRU],
        hidden: int,
        gate_constant: float = 0.0,
    ) -> None:
        """`gate_constant` is added in an LSTM's forget gates, in a GRU's reset and update gates.

        A positive one makes a cell keep its state.
        """
        super().__init__()
        self.embed = nn.Linear(images.channels * images.size, hidden)
        self.rnn = cell(hidden, hidden, batch_first=True)
        self.fc = nn.Linear(hidden, images.classes)
        # torch adds two bias vectors per gate where the paper counts one: the second is frozen and
        # zero except for the constant, so it is neither counted nor pruned nor trained. (In a GRU
        # it is not quite a duplicate: it is inside the reset gate, where the paper has none.)
        constant = self.rnn.get_parameter("bias_hh_l0").requires_grad_(False)
        nn.init.zeros_(constant)
        gates = slice(hidden, 2 * hidden) if cell is nn.LSTM else slice(2 * hidden)
        nn.init.constant_(constant[gates], gate_constant)

    def forward(self, images: Tensor) -> Tensor:
        rows = images.transpose(1, 2).flatten(2)  # [batch, rows, channels * columns]
        return self.fc(self.rnn(self.embed(rows))[0][:, -1])
