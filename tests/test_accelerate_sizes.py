"""Inputs of any size: computed as the network does, or refused in torch's words."""

import copy
import warnings

import pytest
import torch
from accelerate_parts import accelerated_by_squares as accelerated
from accelerate_parts import masked, masked_at_random
from expected_warnings import expects
from torch import nn

import snip
from snip.engine.kernels.library import available

pytestmark = [
    pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set"),
    pytest.mark.usefixtures("empty_cache"),
]


@pytest.mark.parametrize("shape", [(3, 4, 12), (12,), (0, 12), (1, 1, 12)])
@pytest.mark.parametrize("gradients", [True, False])
def test_inputs_of_another_rank_and_empty_ones(shape, gradients):
    model = nn.Sequential(nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 6))
    fast = accelerated(model, torch.randn(8, 12))
    images = torch.randn(shape)
    with torch.set_grad_enabled(gradients):
        torch.testing.assert_close(fast(images), model(images), rtol=1e-4, atol=1e-5)
        for wrong in (torch.randn(4, 3, 4), torch.randn(4, 11)):
            with pytest.raises((RuntimeError, snip.InputError)):
                fast(wrong)


@pytest.mark.parametrize("gradients", [True, False])
def test_an_image_too_small_is_an_error_and_an_empty_batch_is_not(gradients):
    model = nn.Sequential(*(nn.Conv2d(1, 4, 3), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(16, 3)))
    fast = accelerated(model, torch.randn(5, 1, 10, 10))
    with torch.set_grad_enabled(gradients):
        assert fast(torch.randn(0, 1, 10, 10)).shape == (0, 3)
        for size in (2, 3, 5):
            with pytest.raises((RuntimeError, snip.InputError)):
                fast(torch.randn(4, 1, size, size))


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("shape", [(1, 4), (4, 1), (1, 1), (3, 5)])
@expects("losses", "unused")
def test_a_bare_recurrent_layer_of_any_size(cell, batch_first, shape):
    model, images = cell(5, 8, batch_first=batch_first), torch.randn(*shape, 5)
    loss = lambda model, batch: model(batch[0])[0].square().mean()  # noqa: E731
    snip.prune(model, (images, images), sparsity=0.5, loss_fn=loss)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", snip.SnipWarning)
        wrapped = nn.Sequential(copy.deepcopy(model))
    masks = snip.Masks({f"0.{n}": m for n, m in snip.held_masks(model).items()})
    masks.apply(wrapped)
    fast = snip.accelerate(wrapped, images, ways={})
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            torch.testing.assert_close(fast(images)[0], wrapped(images)[0], rtol=1e-4, atol=1e-5)


class Shapes(nn.Module):
    """Forwards in which a size is not what it seems on one example batch."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.pool = kind, nn.AdaptiveAvgPool2d(1)
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.fc, self.row = nn.Linear(8, 4), nn.Linear(8, 8)
        self.register_buffer("position", torch.randn(1, 8, 6, 6))

    def forward(self, x):
        if self.kind == "one image":
            return torch.stack([self.fc(self.a(image).mean((1, 2))) for image in (x[0], x[-1])])
        h = self.a(x)
        if self.kind == "position":
            h = h + self.position
        elif self.kind == "centred":
            h = h - h.mean(0, keepdim=True)
        elif self.kind == "first image":
            h = h * self.a(x[:1])
        h = self.b(h)
        if self.kind == "flatten(2)":
            return self.fc(self.pool(h).flatten(2).squeeze(-1))
        if self.kind == "flatten()":
            return self.fc(self.pool(h).flatten().view(-1, 8))
        rows = h.mean((2, 3))
        if self.kind == "centred rows":
            rows = self.row(rows) - self.row(rows).mean(0, keepdim=True)
        elif self.kind == "first row":
            rows = self.row(rows) + self.row(rows[:1])
        return self.fc(rows)


SHAPES = (
    *("position", "centred", "first image", "centred rows", "first row"),
    *("one image", "flatten(2)", "flatten()"),
)


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("sizes", [(1, 8), (1, 20), (4, 9)])
def test_one_example_batch_does_not_decide_what_is_the_batch(kind, sizes):
    torch.manual_seed(0)
    model, (traced_for, run_on) = Shapes(kind), sizes
    fast = masked_at_random(model, torch.randn(traced_for, 3, 6, 6))
    assert fast.snip_conversion.run is not None
    images = torch.randn(run_on, 3, 6, 6)
    for mode in (True, False):
        for gradients in (True, False):
            with torch.set_grad_enabled(gradients):
                found, expected = fast.train(mode)(images), model.train(mode)(images)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["conv", "linear"])
def test_a_sum_that_fits_one_batch_size_only_is_an_error_at_others(kind):
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Conv2d(2, 4, 1) if kind == "conv" else nn.Linear(2, 4)
            self.b = nn.Conv2d(4, 3, 1) if kind == "conv" else nn.Linear(4, 3)

        def forward(self, x):
            return self.b(self.a(x) + self.a(x[:4]))

    rest = (5, 5) if kind == "conv" else ()
    model = Fixed()
    fast = masked_at_random(model, torch.randn(4, 2, *rest))
    right, wrong = torch.randn(4, 2, *rest), torch.randn(9, 2, *rest)
    torch.testing.assert_close(fast(right), model(right), rtol=1e-4, atol=1e-5)
    for network in (model, fast):
        with pytest.raises(RuntimeError, match="size of tensor"):
            network(wrong)


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("batch_first", [True, False])
def test_one_sequence_without_a_batch(cell, batch_first):
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.embed = cell(6, 5, batch_first=batch_first), nn.Linear(6, 6)

        def forward(self, x):
            outputs = self.rnn(self.embed(x))[0]
            return outputs[:, -1] if batch_first else outputs[-1]

    torch.manual_seed(0)
    model, sequence = Last(), torch.randn(5, 6)
    fast = masked_at_random(model, sequence)
    torch.testing.assert_close(fast(sequence), model(sequence), rtol=1e-4, atol=1e-5)


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
