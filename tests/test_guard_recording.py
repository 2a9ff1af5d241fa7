"""An accelerated network under torch's compilers and tracers, and with unreal tensors."""

import copy

import pytest
import torch
from step_parts import cnn, mlp, pair_of_networks
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import snip
from snip.common.errors import InputError
from snip.engine.kernels.library import available

pytestmark = pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set")


class Wrapped(nn.Module):
    """An accelerated network as a part of a larger one."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.scale, self.inner = nn.Parameter(torch.tensor(2.0)), inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(self.inner(x * self.scale))


def outcome(model, call, images):
    model.zero_grad()
    made = call(images)
    made.square().sum().backward()
    return [made.detach(), *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("make", [mlp, cnn])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_it_runs_as_it_is(make, backend):
    torch._dynamo.reset()
    fast, other, (images, _) = pair_of_networks(make)
    for model, twin in ((fast, other), (Wrapped(fast), Wrapped(other))):
        compiled = torch.compile(model, backend=backend)
        for _ in range(2):
            for one, two in zip(
                outcome(model, compiled, images), outcome(twin, twin, images), strict=True
            ):
                torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-6)
        with torch.no_grad():
            torch.testing.assert_close(compiled(images), twin(images))
    torch._dynamo.reset()


@pytest.mark.parametrize("wrap", [lambda model: model, Wrapped])
@pytest.mark.parametrize(
    "record",
    [
        lambda model, x: torch.export.export(model, (x,), strict=False),
        lambda model, x: torch.jit.trace(model, x),
        lambda model, _x: torch.jit.script(model),
    ],
)
def test_recorders_are_told_what_to_do(record, wrap):
    fast, _, (images, _) = pair_of_networks(mlp)
    with pytest.raises(InputError, match=r"snip\.densify\(model\)"):
        record(wrap(fast), images)
    assert torch.isfinite(fast(images)).all()
    with torch.no_grad():
        torch.testing.assert_close(
            torch.jit.trace(snip.densify(fast), images)(images), fast(images)
        )


def test_a_strict_export_and_a_full_graph_are_told_as_well():
    fast, _, (images, _) = pair_of_networks(mlp)
    for record in (
        lambda: torch.export.export(fast, (images,), strict=True),
        lambda: torch.compile(fast, backend="eager", fullgraph=True)(images),
    ):
        torch._dynamo.reset()
        with pytest.raises(Exception, match=r"snip\.densify\(model\)"):
            record()
    torch._dynamo.reset()


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("make", [mlp, cnn])
def test_fake_tensors_are_refused(make, gradients):
    fast, _, (images, labels) = pair_of_networks(make)
    fake = FakeTensorMode().from_tensor(images)
    layer = next(m for m in fast if hasattr(m, "packed"))
    with torch.set_grad_enabled(gradients):
        with pytest.raises(InputError, match=r"snip\.densify"):
            fast(fake)
        with pytest.raises(Exception, match=r"snip\.densify"):  # torch's own words, not the end
            layer(fake.flatten(1) if make is mlp else fake)
    step = snip.training_step(fast, torch.optim.SGD(fast.parameters(), lr=0.1))
    with pytest.raises(InputError, match=r"snip\.densify"):
        step(fake, labels)


def negated(x: torch.Tensor) -> torch.Tensor:
    """The same numbers as a view whose memory has the opposite sign."""
    return torch.view_as_complex(torch.stack((x, -x), -1)).conj().imag


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.last = nn.LSTM(8, 12, batch_first=True), nn.Linear(12, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.cells(x.flatten(1, 2))[0][:, -1])

    def __iter__(self):
        return iter(self.children())


@pytest.mark.parametrize("make", [mlp, cnn, Recurrent])
def test_negated_views_keep_their_sign(make):
    model = make()
    shape = (9, 2, 14, 14) if make is cnn else (9, 1, 8, 8)
    images, labels = torch.randn(shape), torch.randint(0, 7, (9,))
    snip.prune(model, (images, labels), sparsity=0.5, params=lambda n, _m, _p: "weight" in n)
    fast = snip.accelerate(model, images, ways={})
    for x in (negated(images), torch._neg_view(-images)):
        assert x.is_neg()
        assert torch.equal(x, images)
        for gradients in (True, False):
            with torch.set_grad_enabled(gradients):
                torch.testing.assert_close(fast(x), fast(images))
    layer = next(m for m in fast if hasattr(m, "packed"))
    if make is not Recurrent:
        x = images.flatten(1) if make is mlp else images
        torch.testing.assert_close(layer(torch._neg_view(-x)), layer(x))


@pytest.mark.parametrize("make", [mlp, cnn])
def test_gradients_that_are_negated_views_keep_their_sign(make):
    fast, other, (images, _) = pair_of_networks(make)
    logits, others = fast(images), other(images)
    down = torch.randn(logits.shape)
    logits.backward(torch._neg_view(-down))
    others.backward(down)
    for one, two in zip(fast.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad)


def test_labels_that_are_a_negated_view_are_read_with_their_sign():
    fast, other, (images, labels) = pair_of_networks(mlp)
    wanted = snip.training_step(fast, torch.optim.SGD(fast.parameters(), lr=0.1))(images, labels)
    step = snip.training_step(other, torch.optim.SGD(other.parameters(), lr=0.1))
    found = step(torch._neg_view(-images), torch._neg_view(-labels))
    assert found == pytest.approx(wanted, rel=1e-5)
    for one, two in zip(fast.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two)


def test_copies_can_be_compiled():
    torch._dynamo.reset()
    fast, _, (images, _) = pair_of_networks(mlp)
    twin = copy.deepcopy(fast)
    torch.testing.assert_close(torch.compile(twin, backend="eager")(images), fast(images))
    torch._dynamo.reset()
