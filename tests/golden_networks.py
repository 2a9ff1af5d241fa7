"""Networks of the golden values beside those that Snip has by name.

Files under tests/golden name `golden_networks:small`, so that neither name may change.
"""

from __future__ import annotations

from torch import Tensor, nn


def small() -> nn.Module:
    """Convolution, norm, dropout and linear layer for 28x28 images, with 858 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 7, stride=7),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(64, 10),
    )


class Transformer(nn.Module):
    """Two of torch's encoder layers over the 28 rows of an image; their mean is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(28, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        rows = self.embed(images.flatten(1, 2))
        return self.head(self.encoder(rows).mean(1))
