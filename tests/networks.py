"""Small networks of every kind that the library prunes, with a batch for each."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

from snip.engine.layers.packing import PackedModule


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.second = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1, groups=2)
        self.norm = nn.BatchNorm2d(4)
        self.up = nn.ConvTranspose2d(4, 4, 2, stride=2)
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.norm(self.conv(x)))
        return self.head(self.up(x).mean((2, 3)))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.body = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = x + self.body(torch.tanh(self.norm(x)))
        return self.head(x.mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.rnn = kind(4, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(x)[0][:, -1])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed, _ = self.attention(x, x, x, need_weights=False)
        return self.head(self.norm(x + mixed).mean(1))


class Language(nn.Module):
    """Embedding tied to the output layer, as language models have it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.relu(self.body(self.embed(x)))).mean(1)


def make(kind: str) -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    """A network and an (inputs, targets) batch of five samples for it."""
    targets = torch.tensor([0, 1, 2, 1, 0])
    image, sequence = torch.randn(5, 2, 4, 4), torch.randn(5, 3, 4)
    return {
        "mlp": lambda: (Mlp(), (torch.randn(5, 6), targets)),
        "conv": lambda: (ConvNet(), (image, targets)),
        "residual": lambda: (Residual(), (image, targets)),
        "lstm": lambda: (Recurrent(nn.LSTM), (sequence, targets)),
        "gru": lambda: (Recurrent(nn.GRU), (sequence, targets)),
        "attention": lambda: (Attention(), (sequence, targets)),
        "language": lambda: (Language(), (torch.randint(0, 7, (5, 3)), targets)),
    }[kind]()


KINDS = ("mlp", "conv", "residual", "lstm", "gru", "attention", "language")


def chain() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    """Small layers at both ends of large ones: at 99% the small ones take every place."""
    torch.manual_seed(0)
    widths = (12, 12, 12, 150, 150, 12, 12, 4)
    layers = [nn.Linear(a, b, bias=False) for a, b in pairwise(widths)]
    return nn.Sequential(*layers), (torch.randn(8, 12), torch.arange(8) % 4)


def packed_gradient(fast: nn.Module, name: str, gradient: torch.Tensor) -> torch.Tensor:
    """The part of a dense gradient that an accelerated network has under the same name."""
    layer, key = fast.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]
    return layer.packed[key].pack(gradient) if isinstance(layer, PackedModule) else gradient
