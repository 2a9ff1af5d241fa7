"""Layers that no sparse one covers and weights that a forward reads itself stay as they are."""

import pytest
import torch
from accelerate_parts import accelerated, close
from torch import nn

import snip
from snip.engine.kernels.library import available
from snip.engine.layers.packing import PackedModule

pytestmark = [
    pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set"),
    pytest.mark.usefixtures("empty_cache"),
]


def test_a_weight_that_the_forward_reads_itself_stays_whole():
    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 4)

        def forward(self, x):
            return self.b(nn.functional.linear(self.a(x), self.a.weight))

    model, x = Reads(), torch.randn(5, 6)
    fast = accelerated(model, x)
    assert type(fast.a) is nn.Linear
    assert isinstance(fast.b, PackedModule)
    close(fast(x), model(x))


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Reversed(nn.GRU):
    def forward(self, x):
        return super().forward(x.flip(0))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (Doubled(6, 6), (5, 6)),
        (Reversed(6, 6), (3, 5, 6)),
        (nn.LSTM(6, 6, proj_size=3), (3, 5, 6)),
        (nn.Conv2d(2, 6, 4, padding="same"), (5, 2, 6, 6)),
        (nn.Conv2d(2, 6, 3, padding=1, padding_mode="reflect"), (5, 2, 6, 6)),
        (nn.utils.parametrizations.weight_norm(nn.Linear(6, 6)), (5, 6)),
    ],
)
def test_what_no_sparse_layer_covers_stays_as_it_is(layer, shape):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.head = layer, nn.LazyLinear(4)

        def forward(self, x):
            made = self.layer(x)
            return self.head(made[0][-1] if isinstance(made, tuple) else made)

    model, x = Two(), torch.randn(shape)
    model(x)
    fast = accelerated(model, x, loss_fn=lambda m, b: m(b[0]).square().mean())
    assert type(fast.layer) is type(layer)
    assert isinstance(fast.head, PackedModule)
    close(fast(x), model(x))


def test_a_layer_alone_comes_back_as_it_was():
    layer, x = nn.Linear(6, 4), torch.randn(5, 6)
    masks = snip.prune(layer, (x, torch.zeros(5).long()), sparsity=0.5)
    with pytest.warns(snip.SnipWarning, match="inside a network"):
        assert snip.accelerate(layer, x) is layer
    assert snip.held_masks(layer) == masks


class ReadsWeights(nn.Module):
    """Cannot be traced, and reads a layer's weight itself."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        hidden = self.first(x)
        if hidden.sum() > 1e9:
            return hidden
        return torch.nn.functional.linear(hidden, self.second.weight)


def test_a_weight_that_is_read_by_a_forward_that_cannot_be_traced_stays_whole():
    model, x = ReadsWeights(), torch.randn(5, 6)
    fast = accelerated(model, x)
    assert isinstance(fast.first, PackedModule)
    assert type(fast.second) is nn.Linear
    close(fast(x), model(x))


class AsksForKinds(nn.Module):
    """Does something else with layers of other kinds."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = self.first(x) if x.sum() > -1e9 else x
        return self.second(x if type(self.first) is nn.Linear else x.relu())


def test_a_network_that_would_not_do_the_same_comes_back_as_it_was():
    model, batch = AsksForKinds(), (torch.randn(5, 6), torch.tensor([0, 1, 2, 1, 0]))
    snip.prune(model, batch, sparsity=0.5)
    with pytest.warns(snip.SnipWarning, match="AsksForKinds runs dense.*outputs would differ"):
        assert snip.accelerate(model, batch, ways={}) is model


def test_a_transformer_layer_keeps_the_weights_that_torch_reads_itself():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.Sequential(nn.Linear(4, 8), nn.TransformerEncoder(layer, 2), nn.Linear(8, 3))
    x, loss = torch.randn(5, 7, 4), lambda model, x: model(x).square().mean()
    snip.prune(model, x, sparsity=0.5, loss_fn=loss)
    fast = snip.accelerate(model, x, ways={}).eval()
    assert fast is not model
    model.eval()
    for grads in (True, False):
        with torch.set_grad_enabled(grads):
            torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
