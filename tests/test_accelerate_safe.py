"""`accelerate` takes a batch as the model is called, and never hands out what is wrong."""

import warnings

import pytest
import torch
from accelerate_parts import LABELS, Calls, masked, mlp, quietly
from torch import nn

import snip
from snip.anatomy.accelerated import Accelerated
from snip.engine.kernels.library import available
from snip.engine.layers.packing import PackedModule

pytestmark = [
    pytest.mark.skipif(not available(), reason="no native kernels on this machine"),
    pytest.mark.usefixtures("empty_cache"),
]


# ---- a batch, as the model is called ----


@pytest.mark.parametrize(
    "batch",
    [
        (torch.randn(5, 6), torch.rand(5)),
        (torch.randn(5, 6), torch.rand(5), torch.rand(5)),
        (torch.randn(5, 6), torch.rand(5), torch.rand(5), LABELS),
        [torch.randn(5, 6), torch.rand(5)],
        {"x": torch.randn(5, 6), "scale": torch.rand(5)},
    ],
)
def test_a_batch_is_given_to_the_model_as_the_user_calls_it(batch):
    model = masked(Calls())
    fast = quietly(snip.accelerate, model, batch, ways={})
    assert isinstance(fast.a, PackedModule)
    x, scale = torch.randn(7, 6), torch.rand(7)
    torch.testing.assert_close(fast(x, scale)["y"], model(x, scale)["y"], rtol=1e-4, atol=1e-5)


def test_targets_are_not_taken_for_an_optional_argument():
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

        def forward(self, x, weight=None):
            assert weight is None
            return self.b(self.a(x))

    fast = snip.accelerate(masked(Masked()), (torch.randn(5, 6), LABELS), ways={})
    assert fast.snip_conversion.run is not None  # traced, for the inputs alone


@pytest.mark.parametrize(
    ("build", "batch", "words"),
    [
        (mlp, torch.randn(5, 7), "mat1"),
        (mlp, (torch.randn(5, 7), LABELS), "mat1"),
        (mlp, {"pixels": torch.randn(5, 6)}, "pixels"),
        (lambda: masked(Calls()), (torch.randn(5, 7), torch.rand(5)), "mat1"),
        (lambda: masked(Calls()), torch.randn(5, 6), "scale"),
    ],
)
def test_a_batch_that_the_model_does_not_take_is_refused_before_anything_else(build, batch, words):
    model = build()
    snip.release(model)
    with pytest.raises(snip.InputError, match=f"does not run on this batch .*{words}"):
        snip.accelerate(model, batch)
    assert snip.held_masks(model) is None


# ---- the proof ----


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


# ---- zeros that nobody holds, and an optimiser that trains nothing ----


def test_a_pruned_model_that_was_loaded_is_accelerated():
    pruned, x = mlp(), torch.randn(5, 6)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    model.load_state_dict(pruned.state_dict())
    with pytest.warns(snip.SnipWarning, match="held at zero from now on"):
        fast = snip.accelerate(model, x, ways={})
    assert snip.held_masks(model) == snip.held_masks(pruned)
    assert snip.held_masks(snip.densify(fast)) == snip.held_masks(pruned)
    torch.testing.assert_close(fast(x), pruned(x), rtol=1e-4, atol=1e-5)


def test_a_model_with_hardly_a_zero_is_not_pruned():
    model = nn.Sequential(nn.Linear(6, 80), nn.ReLU(), nn.Linear(80, 3))
    nn.init.zeros_(model[2].bias)
    with pytest.raises(snip.InputError, match=r"not pruned: .* snip\.prune.* load"):
        snip.accelerate(model, torch.randn(5, 6))
    assert snip.held_masks(model) is None


def test_an_optimiser_from_before_says_that_it_trains_nothing():
    model, x = mlp(), torch.randn(5, 6)
    old = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x).sum().backward()
    old.step()
    old.zero_grad()
    fast = snip.accelerate(model, x, ways={})
    fast(x).sum().backward()
    with pytest.warns(snip.SnipWarning, match="SGD trains nothing") as caught:
        old.step()
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        old.step()  # said once
        torch.optim.SGD(fast.parameters(), lr=0.1).step()
        model(x).sum().backward()  # the dense model may train on
        old.step()


# ---- a wrong width is an error in torch's words ----


class Steps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(5, 7, batch_first=True)

    def forward(self, x):
        return self.rnn(x)[0]


@pytest.mark.parametrize(
    ("build", "right", "wrong"),
    [
        (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), (5, 6), (5, 7)),
        (lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), (5, 6), (2, 4, 12)),
        (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2)),
         (5, 3, 4, 4), (5, 1, 4, 4)),
        (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2)),
         (5, 3, 4, 4), (5, 3, 2, 2)),
        (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2)),
         (5, 3, 4, 4), (5, 3, 5, 5)),
        (Steps, (5, 3, 5), (5, 3, 6)),
    ],
)  # fmt: skip
def test_a_wrong_width_is_told_as_torch_tells_it(build, right, wrong):
    model = masked(build())
    fast = snip.accelerate(model, torch.randn(right), ways={})
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            with pytest.raises(RuntimeError) as expected:
                model(torch.randn(wrong))
            with pytest.raises(RuntimeError) as found:
                fast(torch.randn(wrong))
        assert str(found.value) == str(expected.value)
