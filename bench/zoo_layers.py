"""Networks of the zoo that no library has: what people write themselves."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.nn.utils.rnn import pack_padded_sequence


class PackedLSTM(nn.Module):
    """A bidirectional two-layer LSTM over sequences of different lengths."""

    def __init__(self, words: int = 1000, width: int = 256, classes: int = 10) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(
            self.embed(tokens), lengths, batch_first=True, enforce_sorted=False
        )
        _, (hidden, _) = self.lstm(packed)
        return self.head(torch.cat([hidden[-2], hidden[-1]], dim=1))


class Encoder(nn.Module):
    """torch's own transformer layers over patches of an image."""

    def __init__(self, width: int = 192, depth: int = 4, classes: int = 10) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, stride=8)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, depth)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        return self.head(self.layers(tokens).mean(dim=1))


def _twice(channels: int, made: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, made, 3, padding=1), nn.BatchNorm2d(made), nn.ReLU(),
        nn.Conv2d(made, made, 3, padding=1), nn.BatchNorm2d(made), nn.ReLU(),
    )  # fmt: skip


class UNet(nn.Module):
    """A segmentation network: three halvings, three transposed convolutions, skips between."""

    def __init__(self, width: int = 32, classes: int = 10) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width, 8 * width]
        self.down = nn.ModuleList(map(_twice, [3, *widths[:-1]], widths))
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in reversed(widths[:-1])
        )
        self.join = nn.ModuleList(_twice(2 * w, w) for w in reversed(widths[:-1]))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        skips = []
        x = self.down[0](images)
        for block in list(self.down)[1:]:
            skips.append(x)
            x = block(F.max_pool2d(x, 2))
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([skips.pop(), up(x)], dim=1))
        return self.head(x)


def audio(classes: int = 10) -> nn.Sequential:
    """A 1-d convolutional classifier of raw sound, after M5."""
    layers: list[nn.Module] = []
    before = 1
    for width, size, stride in ((64, 79, 4), (128, 3, 1), (256, 3, 1), (512, 3, 1)):
        layers += [nn.Conv1d(before, width, size, stride, padding=size // 2)]
        layers += [nn.BatchNorm1d(width), nn.ReLU(), nn.MaxPool1d(4)]
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(512, classes))


def video(classes: int = 10) -> nn.Sequential:
    """A 3-d convolutional classifier of short clips, after C3D."""
    layers: list[nn.Module] = []
    before = 3
    for width, pool in ((32, (1, 2, 2)), (64, 2), (128, 2), (256, 2)):
        layers += [nn.Conv3d(before, width, 3, padding=1), nn.BatchNorm3d(width), nn.ReLU()]
        layers += [nn.MaxPool3d(pool)]
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(256, classes))


class GAN(nn.Module):
    """A generator of transposed convolutions and a critic under spectral norm."""

    def __init__(self, noise: int = 64, width: int = 64) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            nn.Linear(noise, 4 * width * 64), nn.Unflatten(1, (4 * width, 8, 8)),
            nn.BatchNorm2d(4 * width), nn.ReLU(),
            nn.ConvTranspose2d(4 * width, 2 * width, 4, 2, 1), nn.BatchNorm2d(2 * width), nn.ReLU(),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.ConvTranspose2d(width, 3, 4, 2, 1), nn.Tanh(),
        )  # fmt: skip
        self.critic = nn.Sequential(
            spectral_norm(nn.Conv2d(3, width, 4, 2, 1)), nn.LeakyReLU(0.2),
            spectral_norm(nn.Conv2d(width, 2 * width, 4, 2, 1)), nn.LeakyReLU(0.2),
            spectral_norm(nn.Conv2d(2 * width, 4 * width, 4, 2, 1)), nn.LeakyReLU(0.2),
            nn.Flatten(), spectral_norm(nn.Linear(4 * width * 64, 1)),
        )  # fmt: skip

    def forward(self, noise: Tensor) -> Tensor:
        return self.critic(self.generator(noise))


class Tied(nn.Module):
    """An encoder whose layer is called twice, a decoder that is its transpose, a tied pair."""

    def __init__(self, pixels: int = 3 * 32 * 32, width: int = 512, classes: int = 10) -> None:
        super().__init__()
        self.encode = nn.Linear(pixels, width)
        self.again = nn.Linear(width, width)
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.second.weight = self.first.weight
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        x = self.encode(images.flatten(1)).relu()
        x = self.again(self.again(x).relu()).relu()
        x = self.second(self.first(x).relu()).relu()
        return self.head(x), F.linear(x, self.encode.weight.t())
