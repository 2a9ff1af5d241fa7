"""Networks pruned in whole units shrink to small dense ones that compute the same."""

import pytest
import torch
from granularity_parts import BATCH, IMAGES
from networks import Mlp, Recurrent, Residual
from torch import nn

import snip


class Separable(nn.Module):
    """Depthwise and pointwise convolutions with batch norm, a concatenation and a residual."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(2, 6, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.depth = nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.point = nn.Conv2d(6, 6, 1)
        self.side = nn.Conv2d(6, 4, 3, padding=1)
        self.head = nn.Linear(10, 3)

    def forward(self, x):
        x = torch.relu(self.norm(self.stem(x)))
        y = x + self.point(torch.relu(self.depth(x)))
        return self.head(torch.cat([y, self.side(y)], 1).mean((2, 3)))


class Upwards(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(2, 6, 3, padding=1)
        self.up = nn.ConvTranspose2d(6, 5, 2, stride=2)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(torch.relu(self.up(torch.relu(self.down(x)))).mean((2, 3)))


NETWORKS = {
    "mlp": (Mlp, BATCH),
    "residual": (Residual, IMAGES),
    "separable": (Separable, IMAGES),
    "upwards": (Upwards, IMAGES),
    "lstm": (lambda: Recurrent(nn.LSTM), (torch.randn(8, 3, 4), torch.arange(8) % 3)),
    "gru": (lambda: Recurrent(nn.GRU), (torch.randn(8, 3, 4), torch.arange(8) % 3)),
}


def train(model, batch, steps=3):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("sparsity", [0.3, 0.6])
def test_shrinking_takes_out_what_went_and_computes_the_same(name, sparsity):
    build_network, batch = NETWORKS[name]
    torch.manual_seed(1)
    model = build_network()
    masks = snip.prune(model, batch, sparsity=sparsity, granularity="channel")
    assert masks.kept <= round(masks.total * (1 - sparsity))
    # Batch norm and whatever else is not pruned trains on, also of units that are gone.
    train(model, batch)
    model.eval()
    small = snip.shrink(model, batch)
    torch.testing.assert_close(small(batch[0]), model(batch[0]))
    assert small(batch[0]).shape[1] == 3
    assert snip.shrink_report(small).folded == 0
    # Nothing that was removed is left: the small network is dense.
    held = snip.held_masks(small)
    assert held.kept == held.total == masks.kept
    assert "cut out already" in snip.report(small).granularity_note
