"""Forwards that are hard to follow: modes, tensors that are overwritten, names of the user's."""

import pytest
import torch
import torch.nn.functional as F
from accelerate_parts import accelerated_by_squares as accelerated
from accelerate_parts import masked_at_random
from torch import nn

from snip.engine.kernels.library import available

pytestmark = [
    pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set"),
    pytest.mark.usefixtures("empty_cache"),
]


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


class Named(nn.Module):
    """A layer whose name the user chose freely."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.heads = name, nn.ModuleDict({name: nn.Linear(12, 12)})
        self.last = nn.Linear(12, 6)

    def forward(self, x):
        return self.last(F.relu(self.heads[self.name](x)))


@pytest.mark.parametrize("name", ['7" screen', "a\\", 'x"), print("run") or (self, "'])
def test_names_never_become_code(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    model, x = Named(name), torch.rand(8, 12)
    with pytest.warns(UserWarning, match="cannot stand in generated code: rename it"):
        fast = masked_at_random(model, x)
    torch.testing.assert_close(fast(x), model(x))
    assert capsys.readouterr().out == ""
