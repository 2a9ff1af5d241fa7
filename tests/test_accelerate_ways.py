"""The ways a layer can run, and what only inference does: equal to the masked network."""

import copy

import pytest
import torch
import torch.nn.functional as F
from expected_warnings import expects
from torch import nn

import snip
from snip.engine.kernels.library import available
from snip.models import build

pytestmark = pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set")


@pytest.fixture(autouse=True)
def _own_memory(tmp_path, monkeypatch):
    monkeypatch.setenv("SNIP_CACHE", str(tmp_path))


def small_network(padding: int = 1, size: int = 9) -> tuple[nn.Module, torch.Tensor]:
    """Convolutions with batch norm between, and their input."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(3, 7, 3, padding=padding), nn.BatchNorm2d(7), nn.ReLU()),
        *(nn.Conv2d(7, 5, 3, padding=padding), nn.BatchNorm2d(5)),
        *(nn.Flatten(), nn.LazyLinear(6)),
    )
    images = torch.randn(19, 3, size, size + 2)
    for _ in range(3):  # so that running statistics are somewhere
        model(images * 3 + 1)
    return model, images


def assert_equal_networks(dense: nn.Module, fast: nn.Module, images: torch.Tensor) -> None:
    """Outputs and gradients in both modes, and outputs without gradients."""
    labels = torch.randint(0, 6, (len(images),))
    for training in (True, False):
        found = []
        for model in (dense.train(training), fast.train(training)):
            model.zero_grad()
            data = images.clone().requires_grad_()
            outputs = model(data)
            F.cross_entropy(outputs, labels).backward()
            found.append((outputs.detach(), data.grad, *(m.grad for m in norms(model))))
        for one, two in zip(*found, strict=True):
            torch.testing.assert_close(two, one, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(fast(images), dense(images), rtol=1e-4, atol=1e-5)


def norms(model: nn.Module) -> list[nn.Parameter]:
    return [m.weight for m in model.modules() if isinstance(m, nn.BatchNorm2d)]


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("way", ["sparse", "winograd", "dense"])
@pytest.mark.parametrize(("padding", "size"), [(0, 9), (1, 8), (1, 9), (2, 5), (2, 1)])
def test_every_way_computes_the_same(way, padding, size):
    model, images = small_network(padding, size)
    snip.prune(model, (images, torch.zeros(len(images), dtype=torch.int64)), sparsity=0.4)
    fast = snip.accelerate(model, images, ways={"0": way, "3": way})
    assert [fast[0].way, fast[3].way] == [way, way]
    assert_equal_networks(copy.deepcopy(model), fast, images)


COUNTS = {
    "vgg-like": (1, 7, 33),
    "wrn-16-8": (2, 8),
    "lenet-5-caffe": (1, 2, 7, 8, 33),
    "lenet-300-100": (1, 2, 7, 8, 33),
}


@pytest.mark.parametrize("name", COUNTS)
def test_inference_at_any_batch_size(name):
    shape = (1, 28, 28) if "lenet" in name else (3, 32, 32)
    model, images = build(name, seed=0), torch.randn(33, *shape)
    snip.prune(model, (images[:2], torch.randint(0, 10, (2,))), sparsity=0.97)
    model.eval()
    for count in COUNTS[name]:
        fast = snip.accelerate(model, images[:count], ways={})
        with torch.inference_mode():
            expected = model(images[:count])
            atol = 1e-4 * expected.abs().max().item()
            torch.testing.assert_close(fast(images[:count]), expected, rtol=1e-4, atol=atol)


def test_new_weights_and_statistics_are_seen_at_once():
    model, images = small_network()
    snip.prune(model, (images, torch.zeros(len(images), dtype=torch.int64)), sparsity=0.5)
    fast = snip.accelerate(model.eval(), images, ways={})
    with torch.no_grad():
        for change in (lambda p: p.data.mul_(1.5), lambda p: p.copy_(p * 0.7)):
            for tensor in (*fast.parameters(), fast.get_buffer("1.running_mean")):
                change(tensor)
            again = snip.densify(copy.deepcopy(fast))
            torch.testing.assert_close(fast(images), again.eval()(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("read", ["last", "all", "state"])
@expects("losses")
def test_recurrent_layers_however_their_outputs_are_read(cell, batch_first, read):
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.rnn = nn.Linear(5, 8), cell(8, 12, batch_first=batch_first)
            self.fc = nn.Linear(12, 6)

        def forward(self, x):
            outputs, state = self.rnn(self.embed(x))
            if read == "state":
                return self.fc((state[0] if cell is nn.LSTM else state)[0])
            if read == "all":
                return self.fc(outputs.mean(1 if batch_first else 0))
            return self.fc(outputs[:, -1] if batch_first else outputs[-1])

    torch.manual_seed(0)
    model, images = Reader(), torch.randn(9, 4, 5) if batch_first else torch.randn(4, 9, 5)
    labels = torch.randint(0, 6, (9,))
    snip.prune(model, (images, labels), sparsity=0.5)
    fast, dense = snip.accelerate(model, images, ways={}), copy.deepcopy(model)
    found = []
    for network in (dense, fast):
        data = images.clone().requires_grad_()
        outputs = network(data)
        F.cross_entropy(outputs, labels).backward()
        found.append((outputs.detach(), data.grad))
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(two, one, rtol=1e-4, atol=1e-6)


def test_ways_that_do_not_exist_are_refused():
    model = nn.Sequential(nn.Conv2d(2, 3, 3, stride=2), nn.Flatten(), nn.Linear(12, 4))
    images = torch.randn(4, 2, 5, 5)
    snip.prune(model, (images, torch.zeros(4, dtype=torch.int64)), sparsity=0.5)
    for ways, words in (
        ({"conv": "dense"}, "conv"),
        ({"0": "desne"}, "dense"),
        ({"0": "winograd"}, "stride 1"),
    ):
        with pytest.raises(snip.InputError, match=words):
            snip.accelerate(model, images, ways=ways)


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
