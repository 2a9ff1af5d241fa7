"""Paths through convolutions, shortcuts, branches and tied weights, by hand and by gradients."""

import pytest
import torch
import torch.nn.functional as F
from connectivity_parts import Last, SelfAttention, all_kept, probe, random_masks
from torch import nn

from snip.network.network import Network


def test_grouped_convolutions():
    model = nn.Sequential(
        nn.Conv2d(4, 4, 3, groups=2, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 2, 1),
    )
    masks = {name: mask for name, mask in all_kept(model).items() if not name.startswith("1.")}
    masks["4.weight"][:, 0] = False  # channel 0 is not used
    masks["0.weight"][1] = False  # channel 1 has no input
    found = probe(model, masks, torch.zeros(2, 4, 8, 8))
    first = found.effective["0.weight"]
    assert first.flatten(1).any(1).tolist() == [False, False, True, True]
    assert found.effective["4.weight"].flatten(1).any(0).tolist() == [False, False, True, True]
    units = Network.of(model).live_units(found.effective)["0.weight"]
    assert units.outputs.tolist() == [False, False, True, True]
    assert units.inputs.tolist() == [False, False, True, True]


def test_transposed_convolution_has_its_outputs_in_the_second_dimension():
    model = nn.Sequential(nn.ConvTranspose2d(4, 6, 2, stride=2, groups=2), nn.Conv2d(6, 1, 1))
    masks = all_kept(model)
    masks["1.weight"][:, [0, 5]] = False
    masks["0.weight"][3] = False
    found = probe(model, masks, torch.zeros(1, 4, 3, 3))
    units = Network.of(model).live_units(found.effective)["0.weight"]
    assert units.outputs.tolist() == [False, True, True, True, True, False]
    assert units.inputs.tolist() == [True, True, True, False]


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.last = nn.Linear(3, 2)

    def forward(self, x):
        return self.last(x + F.relu(self.inner(x)))


def test_a_shortcut_keeps_the_rest_alive():
    model = Residual()
    masks = all_kept(model)
    masks["inner.weight"][:] = False
    found = probe(model, masks, torch.zeros(1, 3))
    assert found.connected
    assert not found.effective["inner.weight"].any()
    assert found.effective["last.weight"].all()


class Joined(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.last = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(4, 1)

    def forward(self, x):
        return self.last(torch.cat([self.a(x), -self.b(x)], dim=1)) - 1.0


def test_concatenation_keeps_branches_apart():
    model = Joined()
    masks = all_kept(model)
    masks["last.weight"] = torch.tensor([[True, False, False, True]])
    found = probe(model, masks, torch.zeros(1, 2))
    assert found.effective["a.weight"].tolist() == [[True, True], [False, False]]
    assert found.effective["b.weight"].tolist() == [[False, False], [True, True]]


class Difference(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x):
        return (self.a(x) - self.b(x)).abs() / 3


def test_a_difference_does_not_cancel():
    model = Difference()
    found = probe(model, all_kept(model), torch.zeros(1, 2))
    assert all(mask.all() for mask in found.effective.values())


def test_tied_weights_and_one_hot_input():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.inp, self.out = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
            self.out.weight = self.inp.weight

        def forward(self, x):
            return self.out(torch.relu(self.inp(F.one_hot(x, 3).float())))

    mask = torch.tensor([[1, 0, 0], [0, 0, 0], [0, 1, 0]]).bool()
    found = probe(Tied(), {"inp.weight": mask}, torch.zeros(4, dtype=torch.int64))
    # 0 -> 0 -> 0 uses it twice; 1 -> 2 leads nowhere in the second use.
    assert found.effective["inp.weight"].tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 0]]


class Blocks(nn.Module):
    """Convolutions with groups and stride, a projected shortcut, pooling and a gate."""

    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(2, 6, 3, stride=2, padding=1, bias=False)
        self.b = nn.Conv2d(6, 6, 3, padding=1, groups=3, bias=False)
        self.short = nn.Conv2d(2, 6, 1, stride=2, bias=False)
        self.gate = nn.Linear(6, 6, bias=False)
        self.up = nn.ConvTranspose2d(6, 4, 2, groups=2, bias=False)
        self.fc = nn.Linear(4, 3, bias=False)

    def forward(self, x):
        x = torch.tanh(self.b(torch.tanh(self.a(x)))) - self.short(x)
        x = x * torch.sigmoid(self.gate(x.mean((2, 3))))[:, :, None, None]
        return self.fc(self.up(F.avg_pool2d(x, 2)).mean((2, 3)))


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (Blocks, (2, 8, 8)),
        (lambda: Last(nn.LSTM(3, 5, num_layers=2, batch_first=True, bias=False), 5), (3, 3)),
        (lambda: Last(nn.GRU(3, 5, batch_first=True, bias=False, bidirectional=True), 10), (3, 3)),
        (SelfAttention, (3, 2)),
    ],
)
@pytest.mark.parametrize("seed", range(10))
def test_effective_is_where_a_real_gradient_is_not_zero(build, shape, seed):
    """Without biases, and with activations that are zero only at zero, both say the same."""
    torch.manual_seed(seed)
    model = build().double()
    masks = random_masks(model, density=0.2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn_like(parameter) * masks[name])
    found = probe(model, masks, torch.zeros(1, *shape))
    output = model(torch.randn(4, *shape, dtype=torch.float64))
    (output * torch.randn_like(output)).sum().backward()
    for name, parameter in model.named_parameters():
        assert torch.equal(found.effective[name], (parameter.grad != 0) & masks[name]), name


class TwoGates(nn.Module):
    """Two gates in a row, made without a layer between them."""

    def __init__(self, gate):
        super().__init__()
        self.a, self.b, self.last = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, 2)
        self.gate = gate

    def forward(self, x):
        return self.last(self.gate(self.gate(self.a(x), self.b(x)), self.b(x)))


def frozen(a, b):
    with torch.no_grad():
        return a + b


@pytest.mark.parametrize(
    "gate",
    [
        lambda a, b: F.glu(torch.cat([a, b], 1)),
        lambda a, b: a / (1 + b.abs()),
        lambda a, b: a / b.norm(dim=1, keepdim=True),
        lambda a, b: a * torch.arange(-4, 0) + b,  # negative integers
        frozen,
    ],
    ids=["glu", "quotient", "norm", "integers", "no_grad"],
)
def test_everything_passes_two_gates(gate):
    model = TwoGates(gate)
    found = probe(model, all_kept(model), torch.zeros(1, 3))
    assert found.connected
    assert all(mask.all() for mask in found.effective.values())
