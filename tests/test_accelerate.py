"""Accelerated networks: the outputs, gradients and training of the masked dense ones."""

import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from networks import packed_gradient
from torch import nn

import snip
from snip.engine.kernels.library import available
from snip.engine.layers.conv import SparseConv2d
from snip.engine.layers.linear import SparseLinear
from snip.models import build

pytestmark = pytest.mark.skipif(not available(), reason="no native kernels on this machine")

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
NETWORKS = {
    "lenet-300-100": (0.98, (1, 28, 28)),
    "lenet-5-caffe": (0.99, (1, 28, 28)),
    "lstm-s": (0.95, (1, 28, 28)),
    "gru-s": (0.95, (1, 28, 28)),
    "alexnet-s": (0.9, (3, 32, 32)),
    "vgg-like": (0.97, (3, 32, 32)),
    "wrn-16-8": (0.95, (3, 32, 32)),
}


@pytest.fixture(autouse=True)
def _own_memory(tmp_path, monkeypatch):
    monkeypatch.setenv("SNIP_CACHE", str(tmp_path))


def batch_of(count, shape, classes=10):
    return torch.randn(count, *shape), torch.randint(0, classes, (count,))


def pair(name, count=4):
    """The masked dense network and its accelerated twin, and a batch."""
    sparsity, shape = NETWORKS[name]
    model, batch = build(name, seed=0), batch_of(count, shape)
    # Under these masks no rounding moves a value to the other side of a ReLU, where one element
    # changes the gradients of both engines by more than any tolerance.
    snip.prune(model, batch, sparsity=sparsity, floor=0, scoring=snip.Scoring.authors())
    return copy.deepcopy(model), snip.accelerate(model, batch, ways={}), batch


def assert_same(dense, fast, batch):
    """Outputs and all gradients agree."""
    dense.zero_grad(), fast.zero_grad()
    expected, found = dense(batch[0]), fast(batch[0])
    scale = expected.abs().max().item()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * scale)
    exact = copy.deepcopy(dense).double()
    for network, data in ((dense, batch[0]), (fast, batch[0]), (exact, batch[0].double())):
        F.cross_entropy(network(data), batch[1]).backward()
    plain, true = ({n: p.grad for n, p in net.named_parameters()} for net in (dense, exact))
    # A bias before a batch norm has no gradient but rounding: measure against the largest.
    noise = 1e-6 * max(g.abs().max().item() for g in true.values() if g is not None)
    for name, parameter in fast.named_parameters():
        if parameter.requires_grad and parameter.numel():
            wanted = packed_gradient(fast, name, true[name])
            # Deep in a network torch's own rounding comes near the tolerance: three times that.
            own = (packed_gradient(fast, name, plain[name]) - wanted).abs().max().item()
            allowed = max(1e-4 * wanted.abs().max().item(), 3 * own) + noise
            assert (parameter.grad - wanted).abs().max().item() <= allowed, name


@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_and_gradients_equal_the_masked_networks(name):
    dense, fast, batch = pair(name)
    for mode in (True, False):
        assert_same(dense.train(mode), fast.train(mode), batch)


def test_any_batch_size():
    dense, fast, _ = pair("lenet-5-caffe")
    for count in (1, 3, 16, 17, 40):
        assert_same(dense, fast, batch_of(count, (1, 28, 28)))
    small, quick, _ = pair("vgg-like", 2)
    for count in (1, 3):
        assert_same(small.eval(), quick.eval(), batch_of(count, (3, 32, 32)))


@pytest.mark.parametrize("count", [3, 16, 17])
def test_batch_statistics_of_a_batch_that_fills_no_block(count):
    model = nn.Sequential(
        nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(96, 10)
    )
    batch = batch_of(count, (2, 6, 6))
    snip.prune(model, batch, sparsity=0.5)
    dense = copy.deepcopy(model)
    fast = snip.accelerate(model, batch, ways={})
    assert_same(dense, fast, batch)
    for key, value in dense.state_dict().items():
        torch.testing.assert_close(fast.state_dict()[key], value, **CLOSE)


@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (5, 2)])
@pytest.mark.parametrize(
    ("stride", "padding", "dilation"), [(1, 0, 1), (2, 1, 1), (1, 2, 2), ((2, 3), (0, 1), 1)]
)
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("sparsity", [0.3, 0.95, None])
def test_convolutions(kernel, stride, padding, dilation, groups, sparsity):
    conv = nn.Conv2d(4, 6, kernel, stride, padding, dilation, groups)
    model = nn.Sequential(conv, nn.Flatten(), nn.LazyLinear(10))
    batch = batch_of(5, (4, 9, 8))
    model(batch[0])
    if sparsity is None:  # a layer of which nothing is left
        masks = snip.Masks(
            {"0.weight": torch.zeros(conv.weight.shape).bool(), "2.weight": model[2].weight > 0}
        )
        masks.apply(model)
    else:
        snip.prune(model, batch, sparsity=sparsity)
    dense = copy.deepcopy(model)
    assert_same(dense, snip.accelerate(model, batch, ways={}), batch)


class Branches(nn.Module):
    """Additions, shared values, pools, means and an operation that the engine does not know."""

    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(2, 4, 3, padding=1)
        self.b = nn.Conv2d(4, 4, 3, padding=1)
        self.c = nn.Conv2d(4, 4, 1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(4, 10)

    def forward(self, x):
        x = self.a(x)
        y = self.b(F.relu(self.norm(x))) + x
        y = F.max_pool2d(y, 3, 2, 1) * torch.sigmoid(F.max_pool2d(y, 3, 2, 1))
        y = self.c(y) + y.mean((2, 3), keepdim=True)
        return self.head(torch.flatten(self.pool(F.relu(y)), 1))


def test_branches_and_foreign_operations():
    model, batch = Branches(), batch_of(5, (2, 8, 8))
    snip.prune(model, batch, sparsity=0.6)
    dense = copy.deepcopy(model)
    assert_same(dense, snip.accelerate(model, batch, ways={}), batch)


class Untraceable(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)
        self.head = nn.Linear(4, 10)

    def forward(self, x):
        x = self.conv(x).mean((2, 3))
        return self.head(x if x.sum() > 0 else x * 2)


def test_a_model_that_cannot_be_traced_still_works():
    model, batch = Untraceable(), batch_of(5, (2, 6, 6))
    snip.prune(model, batch, sparsity=0.6)
    dense = copy.deepcopy(model)
    with pytest.warns(snip.SnipWarning, match="cannot be traced"):
        fast = snip.accelerate(model, batch, ways={})
    assert "AcceleratedUntraceable" in repr(fast)
    assert_same(dense, fast, batch)


def test_only_surviving_weights_are_parameters():
    dense, fast, _ = pair("lenet-300-100")
    masks = snip.held_masks(dense)
    assert sum(p.numel() for p in fast.parameters()) == masks.kept
    assert list(fast.state_dict()) == list(dense.state_dict())


def test_training_gives_the_same_network_and_densify_brings_it_back():
    dense, fast, batch = pair("lenet-5-caffe", 20)
    for model in (dense, fast):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
        for _ in range(10):
            optimizer.zero_grad()
            F.cross_entropy(model(batch[0]), batch[1]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    plain = snip.densify(fast)
    assert type(plain) is type(dense)
    snip.held_masks(dense).check(plain)
    assert snip.held_masks(plain) == snip.held_masks(dense)
    for (name, expected), found in zip(dense.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize(
    "name",
    [
        "Adam",
        "AdamW",
        "RMSprop",
        "Adagrad",
        "Adadelta",
        "NAdam",
        "RAdam",
        "Adamax",
        "ASGD",
        "Rprop",
    ],
)
def test_torch_optimizers(name):
    dense, fast, batch = pair("lenet-300-100", 10)
    for model in (dense, fast):
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=1e-3)
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(batch[0]), batch[1]).backward()
            optimizer.step()
    torch.testing.assert_close(fast(batch[0]), dense(batch[0]), rtol=2e-3, atol=2e-4)


def test_state_dicts_go_in_and_out():
    dense, fast, batch = pair("lstm-s")
    other = copy.deepcopy(dense)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.5)
    fast.load_state_dict(other.state_dict())
    torch.testing.assert_close(fast(batch[0]), other(batch[0]), **CLOSE)
    dense.load_state_dict(fast.state_dict())
    torch.testing.assert_close(dense(batch[0]), other(batch[0]), **CLOSE)


def test_weights_outside_the_masks_are_refused():
    _, fast, _ = pair("lenet-300-100")
    before = copy.deepcopy(fast.state_dict())
    with pytest.raises(RuntimeError, match="outside the masks"):
        fast.load_state_dict(build("lenet-300-100", seed=1).state_dict())
    broken = {k: v for k, v in before.items() if k != "fc1.weight"}
    with pytest.raises(RuntimeError, match=r"fc1\.weight"):
        fast.load_state_dict(broken)


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "torch.save"])
def test_copies_compute_and_train_on_their_own(way):
    _, fast, batch = pair("lenet-5-caffe")
    if way == "deepcopy":
        twin = copy.deepcopy(fast)
    elif way == "pickle":
        twin = pickle.loads(pickle.dumps(fast))
    else:
        buffer = io.BytesIO()
        torch.save(fast, buffer)
        buffer.seek(0)
        twin = torch.load(buffer, weights_only=False)
    torch.testing.assert_close(twin(batch[0]), fast(batch[0]), rtol=0, atol=0)
    with torch.no_grad():
        next(twin.parameters()).add_(1)
    assert not torch.equal(twin(batch[0]), fast(batch[0]))
    assert snip.held_masks(snip.densify(twin)) is not None


def test_another_size_of_image_is_computed_correctly():
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10)
    )
    batch = batch_of(5, (2, 8, 8))
    snip.prune(model, batch, sparsity=0.5)
    dense = copy.deepcopy(model)
    fast = snip.accelerate(model, batch, ways={})
    assert_same(dense, fast, batch_of(3, (2, 11, 6)))


@pytest.mark.parametrize("name", ["lenet-5-caffe", "lstm-s"])
def test_another_dtype_goes_the_slow_way(name):
    dense, fast, (inputs, _) = pair(name)
    torch.testing.assert_close(fast.double()(inputs.double()), dense.double()(inputs.double()))


def test_channels_last_inputs():
    dense, fast, (inputs, targets) = pair("vgg-like", 3)
    batch = inputs.contiguous(memory_format=torch.channels_last), targets
    assert_same(dense.eval(), fast.eval(), batch)


def test_bad_input_is_refused():
    model, batch = build("lenet-300-100", seed=0), batch_of(4, (1, 28, 28))
    with pytest.raises(snip.InputError, match="not pruned"):
        snip.accelerate(model, batch, ways={})
    masks = snip.prune(model, batch, sparsity=0.9)
    with pytest.raises(snip.InputError, match="typical batch"):
        snip.accelerate(model, None)
    with pytest.raises(snip.KindError, match=r"not a torch\.nn\.Module"):
        snip.densify(model.state_dict())
    fast = snip.accelerate(model, batch, ways={})
    with pytest.raises(snip.InputError, match="accelerated already"):
        snip.accelerate(fast, batch)
    with pytest.raises(snip.InputError, match="not applied"):
        snip.accelerate(build("lenet-300-100", seed=0), batch, masks=masks)


def test_a_shared_layer_and_a_tied_weight():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(10, 10)
            self.tied = nn.Linear(10, 10, bias=False)
            self.other = nn.Linear(10, 10, bias=False)
            self.other.weight = self.tied.weight

        def forward(self, x):
            return self.other(F.relu(self.tied(self.layer(F.relu(self.layer(x))))))

    model, batch = Twice(), batch_of(4, (10,))
    snip.prune(model, batch, sparsity=0.5)
    dense = copy.deepcopy(model)
    fast = snip.accelerate(model, batch, ways={})
    torch.testing.assert_close(fast(batch[0]), dense(batch[0]), **CLOSE)


def test_timings_are_remembered(tmp_path, monkeypatch):
    faster = {"dense": 2.0, "sparse": 1.0}
    monkeypatch.setattr("snip.engine.accelerate.step_seconds", lambda *_: faster)
    dense, _, batch = pair("vgg-like", 2)
    fast = snip.accelerate(dense, batch)
    (file,) = tmp_path.glob("timings-*.json")
    before = file.read_text()
    again = snip.accelerate(dense, batch)
    assert file.read_text() == before
    assert again.snip_conversion.source == fast.snip_conversion.source


def test_layers_print_what_they_keep():
    _, fast, _ = pair("lenet-5-caffe")
    kinds = [type(layer) for layer in fast.modules()]
    assert kinds.count(SparseConv2d) == kinds.count(SparseLinear) == 2
    assert "kept=" in repr(fast)
