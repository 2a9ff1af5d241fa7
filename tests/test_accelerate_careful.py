"""Networks and uses that an accelerated network must get right, or refuse in words."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import snip
from snip.engine.kernels.library import available

pytestmark = pytest.mark.skipif(not available(), reason="no native kernels on this machine")


@pytest.fixture(autouse=True)
def _own_memory(tmp_path, monkeypatch):
    monkeypatch.setenv("SNIP_CACHE", str(tmp_path))


class Modes(nn.Module):
    """What fx bakes in or forgets, one at a time."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.a, self.b = kind, nn.Linear(12, 12), nn.Linear(12, 12)
        self.relu, self.c = nn.ReLU(inplace=True), nn.Linear(12, 6)

    def encode(self, x):
        return F.relu(self.a(x))

    def forward(self, x):
        if self.kind == "dropout":
            return self.c(F.dropout(self.encode(x), 0.5, training=self.training))
        if self.kind == "softmax in eval":
            return self.c(x) if self.training else self.c(x).softmax(1)
        if self.kind == "no gradient":
            with torch.no_grad():
                hidden = self.a(x)
            return self.c(F.relu(hidden))
        hidden = self.a(x)
        if self.kind == "relu in place":
            return self.c(self.b(self.relu(hidden)) + hidden)
        if self.kind == "relu_ alone":
            F.relu_(hidden)
            return self.c(hidden)
        if self.kind == "added in place":
            same = hidden
            hidden += self.b(x)
            return self.c(same) + self.c(hidden)
        if self.kind == "view overwritten":
            hidden.flatten(1).relu_()
            return self.c(hidden)
        if self.kind == "by keyword":
            return self.c(input=F.relu(hidden))
        if self.kind == "a head of one":
            return self.c(hidden).sum(1, keepdim=True).flatten()
        if self.kind == "flat outputs":
            return self.c(hidden).flatten()
        return self.c(hidden).view(-1, 2, 3)  # "viewed"


KINDS = (
    *("dropout", "softmax in eval", "no gradient", "relu in place", "relu_ alone"),
    *(
        "added in place",
        "view overwritten",
        "by keyword",
        "a head of one",
        "flat outputs",
        "viewed",
    ),
)


def accelerated(model: nn.Module, images: torch.Tensor, **options) -> nn.Module:
    labels = torch.zeros(len(images), dtype=torch.int64)
    loss = lambda model, batch: model(batch[0]).square().mean()  # noqa: E731
    snip.prune(model, (images, labels), sparsity=0.5, loss_fn=loss)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", snip.SnipWarning)
        return snip.accelerate(model, images, **{"ways": {}, **options})


def _bias_gradient(network: nn.Module, name: str) -> torch.Tensor | None:
    bias = network.get_submodule(name).bias
    return None if bias is None else bias.grad


@pytest.mark.parametrize("kind", KINDS)
def test_the_graph_does_what_the_network_does(kind):
    torch.manual_seed(0)
    model, images = Modes(kind), torch.randn(20, 12)
    fast = accelerated(model, images)
    for mode in (True, False):
        found = []
        for network in (model.train(mode), fast.train(mode)):
            network.zero_grad()
            torch.manual_seed(1)
            outputs = network(images)
            outputs.square().sum().backward()
            found.append((outputs.detach(), *(_bias_gradient(network, name) for name in "ac")))
        assert found[0][0].shape == found[1][0].shape
        torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-4, atol=1e-5)
        for layer, one, two in zip(("a", "c"), found[0][1:], found[1][1:], strict=True):
            if two is None:  # nothing flows there, or no bias is left
                packed = fast.get_submodule(layer).packed["bias"]
                assert one is None or packed.kept == 0
            else:
                kept = fast.get_submodule(layer).packed["bias"].pack(one)
                torch.testing.assert_close(two, kept, rtol=1e-4, atol=1e-4)


def test_a_forward_that_cannot_be_traced_finds_its_own_methods():
    class Untraceable(Modes):
        def forward(self, x):
            return self.c(self.encode(x)) if x.sum() > 0 else self.c(self.encode(-x))

    model, images = Untraceable(""), torch.randn(7, 12)
    fast = accelerated(model, images)
    torch.testing.assert_close(fast(images), model(images), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(fast.encode(images), model.encode(images), rtol=1e-4, atol=1e-5)
    with pytest.raises(AttributeError):
        fast.no_such_method()


def test_names_of_ours_may_be_names_of_the_users():
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.straight, self.ways, self.plain = (nn.Linear(5, 5) for _ in range(3))
            self.names, self.source = nn.Linear(5, 5), nn.Linear(5, 4)

        def forward(self, x):
            return self.source(self.names(self.plain(self.ways(self.straight(x)))))

    model, images = Named(), torch.randn(6, 5)
    fast = accelerated(model, images)
    torch.testing.assert_close(fast(images), model(images), rtol=1e-4, atol=1e-5)


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


def test_the_last_output_alone_is_computed_where_only_it_is_read():
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.fc = nn.Linear(5, 6), nn.Linear(7, 3)
            self.rnn = nn.LSTM(6, 7, batch_first=True)

        def forward(self, x):
            outputs, _ = self.rnn(self.embed(x))
            return self.fc(outputs[:, -1])

    fast = accelerated(Reader(), torch.randn(4, 3, 5))
    assert "last_output" in fast.snip_conversion.source
    assert "for_steps" in fast.snip_conversion.source


def test_constant_channels_are_normalised_as_exactly_as_by_torch():
    norm, constant = nn.BatchNorm2d(3), torch.full((9, 3, 4, 5), -1.23)
    model = nn.Sequential(nn.Conv2d(3, 3, 1), norm, nn.ReLU(), nn.Flatten(), nn.Linear(60, 4))
    fast = accelerated(model, torch.randn(9, 3, 4, 5))
    norm = fast.get_submodule("1")
    from snip.engine.layers.layouts import from_blocks, to_blocks

    found = from_blocks(norm.on_blocks(to_blocks(constant), 9), 9)
    assert found.abs().max() < 3e-6


def test_a_single_value_per_channel_is_refused_in_training():
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3, 4))
    fast = accelerated(model, torch.randn(4, 2, 3, 3))
    with pytest.raises(ValueError, match="more than one value per channel"):
        fast.train()(torch.randn(1, 2, 3, 3))


@pytest.mark.parametrize("function", ["report", "shrink", "prune", "compact", "masks"])
def test_functions_for_ordinary_models_say_densify(function, tmp_path):
    model, images = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)), torch.randn(3, 6)
    fast = accelerated(model, images)
    calls = {
        "report": lambda: snip.report(fast, snip.held_masks(model)),
        "shrink": lambda: snip.shrink(fast, images),
        "prune": lambda: snip.prune(fast, (images, torch.zeros(3).long()), sparsity=0.9),
        "compact": lambda: snip.compact.save(fast, tmp_path / "model.snip"),
        "masks": lambda: snip.held_masks(model).apply(fast),
    }
    with pytest.raises(snip.InputError, match="densify"):
        calls[function]()


def test_densify_follows_another_dtype():
    model, images = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)), torch.randn(3, 6)
    fast = accelerated(model, images).double()
    plain = snip.densify(fast)
    assert next(plain.parameters()).dtype == torch.float64
    torch.testing.assert_close(plain(images.double()), fast(images.double()))


def test_the_default_dtype_does_not_matter():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3))
    images = torch.randn(9, 1, 5, 5)
    fast = accelerated(model, images)
    expected = fast(images)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad():
            torch.testing.assert_close(fast(images), expected)
        torch.testing.assert_close(fast(images), expected)
    finally:
        torch.set_default_dtype(torch.float32)


def masked_at_random(model: nn.Module, images: torch.Tensor) -> nn.Module:
    """The accelerated model, without a loss: some of these have no gradients."""
    snip.Masks({n: torch.rand(p.shape) < 0.5 for n, p in model.named_parameters()}).apply(model)
    return snip.accelerate(model, images, ways={})


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


def test_the_input_is_overwritten_where_the_model_overwrites_it():
    class Adds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(5, 5), nn.Linear(5, 3)

        def forward(self, x):
            x += self.a(x)
            return self.b(x)

    torch.manual_seed(0)
    model, one = Adds(), torch.randn(4, 5)
    with torch.no_grad():
        fast, two = masked_at_random(model, one.clone()), one.clone()
        torch.testing.assert_close(fast(two), model(one), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(two, one, rtol=1e-4, atol=1e-5)


def test_layers_of_another_dilation_are_timed_apart(monkeypatch):
    from snip.engine.convert import ways
    from snip.engine.convert.timings import Timings

    monkeypatch.setattr(ways, "LITTLE", 0)
    keys = []
    monkeypatch.setattr(Timings, "get", lambda self, key, make, best: keys.append(key) or 1.0)
    layers = nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3, dilation=2), nn.Flatten(), nn.Linear(16, 2)
    model, images = nn.Sequential(*layers), torch.randn(2, 4, 8, 8)
    snip.Masks({n: torch.rand(p.shape) < 2 for n, p in model.named_parameters()}).apply(model)
    snip.accelerate(model, images)
    assert any("dilation=(2, 2)" in key for key in keys)
    assert any("dilation=(1, 1)" in key for key in keys)
