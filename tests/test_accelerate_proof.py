"""`accelerate` compares outputs, gradients and training first: nothing wrong is handed out."""

import pytest
import torch
from accelerate_parts import masked, quietly
from torch import nn

import snip
from snip.engine.kernels.library import available
from snip.engine.layers.packing import PackedModule
from snip.network.parameters import Accelerated

pytestmark = [
    pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set"),
    pytest.mark.usefixtures("empty_cache"),
]


class Detaches(nn.Module):
    """Computes the same with layers of another kind, and has other gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = self.first(x) if x.sum() > -1e9 else x
        return self.second(x if type(self.first) is nn.Linear else x.detach()).softmax(1)


def test_gradients_are_compared_too():
    model = masked(Detaches())
    with pytest.warns(snip.SnipWarning, match=r"gradient of first\.weight would differ"):
        assert snip.accelerate(model, torch.randn(5, 6), ways={}) is model


class DropsAndTrainsOtherwise(Detaches):
    """Random in training, so that outputs could not be compared if anything were dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.3)

    def forward(self, x):
        x = self.dropout(self.first(x) if x.sum() > -1e9 else x)
        other = self.training and type(self.first) is not nn.Linear
        return self.second(2 * x if other else x)


def test_networks_with_dropout_are_compared_in_training_too():
    model = masked(DropsAndTrainsOtherwise())
    with pytest.warns(snip.SnipWarning, match="outputs would differ"):
        assert snip.accelerate(model, torch.randn(5, 6), ways={}) is model
    assert model.dropout.p == 0.3


class TrainsOtherwise(Detaches):
    def forward(self, x):
        if self.training and type(self.first) is not nn.Linear:
            raise RuntimeError("no such layer in training")
        return self.second(self.first(x) if x.sum() > -1e9 else x)


@pytest.mark.parametrize("masks_of", [("head.weight",), ("table.weight", "head.weight")])
def test_sparse_gradients_are_compared_too(masks_of):
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(11, 6, sparse=True), nn.Linear(6, 3)

        def forward(self, words):
            return self.head(self.table(words).mean(1))

    model, words = Words(), torch.randint(0, 11, (5, 4))
    masks = {n: torch.rand_like(model.get_parameter(n)) > 0.5 for n in masks_of}
    snip.Masks(masks).apply(model)
    fast = snip.accelerate(model, words, ways={})
    assert isinstance(fast.head, PackedModule)
    fast(words).sum().backward()
    model(words).sum().backward()
    assert fast.table.weight.grad.is_sparse
    torch.testing.assert_close(
        fast.table.weight.grad.to_dense(), model.table.weight.grad.to_dense()
    )


def test_outputs_that_cannot_be_compared_leave_the_network_dense():
    class Sparse(nn.Linear):
        def forward(self, x):
            return super().forward(x).to_sparse()

    model = masked(nn.Sequential(nn.Linear(6, 8), Sparse(8, 3)))
    with pytest.warns(snip.SnipWarning, match="runs dense"):
        assert snip.accelerate(model, torch.randn(5, 6), ways={}) is model


def test_training_is_tried_too():
    model = masked(TrainsOtherwise()).eval()
    with pytest.warns(snip.SnipWarning, match="no such layer in training"):
        assert snip.accelerate(model, torch.randn(5, 6), ways={}) is model


def test_a_network_with_dropout_is_accelerated():
    model = masked(nn.Sequential(nn.Linear(6, 40), nn.Dropout(), nn.Linear(40, 3)))
    assert isinstance(snip.accelerate(model, torch.randn(5, 6), ways={}), Accelerated)


def test_asking_a_weight_for_its_type_does_not_keep_it_whole():
    class Casts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

        def forward(self, x):
            return self.b(self.a(x).to(self.b.weight.dtype)) * len(self.a.weight)

    model, x = masked(Casts()), torch.randn(5, 6)
    fast = quietly(snip.accelerate, model, x, ways={})
    assert type(fast.a) is nn.Linear  # its length is that of the ordinary weight
    assert isinstance(fast.b, PackedModule)
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
