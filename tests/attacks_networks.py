"""Random networks: accelerated and shrunk ones compute what the dense one does in float64."""

from __future__ import annotations

import copy
import random
import warnings

import torch
import torch.nn.functional as F
from networks import packed_gradient
from torch import nn

import snip
from snip.common.errors import SnipWarning
from snip.engine.layers.packing import PackedModule
from snip.engine.layers.table import SPARSE_LAYERS, sparse_layer

CLASSES = 5
SIZES = (1, 2, 3, 5, 8, 15, 16, 17, 33)  # of batches and layers: around the kernels' blocks
KEPT = (0.0, 0.02, 0.1, 0.3, 0.7, 1.0)  # fractions of a layer's weights
SMOOTH = (nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.Identity)
KINKED = (nn.ReLU, nn.LeakyReLU, nn.MaxPool2d)
Values = dict[str, torch.Tensor]


def attack(seed: int) -> None:
    """Build a random pruned network and compare everything that it computes."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    model, shape = chance.choice([random_mlp, random_conv, random_recurrent])(chance)
    settle(model, shape)
    random_masks(chance, model).apply(model)
    model.train(chance.random() < 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SnipWarning)
        fast = accelerated(chance, model, shape)
    # Where a float32 rounds to the other side of a kink or to the other maximum, gradients differ
    # rightly. An error in the code would show again with other inputs.
    kinked = any(isinstance(module, KINKED) for module in model.modules())
    attempts = [compared(chance, model, fast, shape) for _ in range(3 if kinked else 1)]
    assert not all(attempts), f"{model}\n{fast}\n{attempts[0]}"
    check_shrink(chance, model, shape)


class Residual(nn.Module):
    """Adds what a branch computes."""

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.branch(x)


class LastStep(nn.Module):
    """A recurrent layer's output at its last step."""

    def __init__(self, recurrent: nn.RNNBase) -> None:
        super().__init__()
        self.recurrent = recurrent

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.recurrent(x)[0][:, -1]


def activation(chance: random.Random) -> nn.Module:
    return chance.choice([nn.ReLU, nn.ReLU, nn.LeakyReLU, *SMOOTH])()


def random_mlp(chance: random.Random) -> tuple[nn.Module, tuple[int, ...]]:
    shape = (first := chance.choice(SIZES[2:]),)
    layers: list[nn.Module] = []
    for _ in range(chance.randint(1, 4)):
        width = chance.choice(SIZES)
        norm = chance.choice([nn.Identity, nn.BatchNorm1d, nn.LayerNorm])(width)
        layers += [nn.Linear(first, width, bias=chance.random() < 0.7), norm, activation(chance)]
        first = width
    return nn.Sequential(*layers, nn.Linear(first, CLASSES)), shape


def random_conv(chance: random.Random) -> tuple[nn.Module, tuple[int, ...]]:
    channels, size = chance.choice([1, 2, 3, 4, 8]), chance.choice([7, 9, 12])
    shape = (channels, size, size + chance.choice([0, 2]))
    layers: list[nn.Module] = []
    for _ in range(chance.randint(1, 4)):
        piece, channels = random_piece(chance, channels)
        layers += piece
    if chance.random() < 0.5:
        layers.append(nn.AdaptiveAvgPool2d(1))
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(CLASSES)), shape


def random_piece(chance: random.Random, channels: int) -> tuple[list[nn.Module], int]:
    """A convolution and what follows it, or a residual branch; and the channels that come out."""
    norm = chance.choice([nn.Identity, nn.BatchNorm2d])
    bias = chance.random() < 0.5
    if chance.random() < 0.3:
        conv = nn.Conv2d(channels, channels, 3, padding=1, bias=bias)
        return [Residual(nn.Sequential(conv, norm(channels), activation(chance)))], channels
    groups = chance.choice([n for n in (1, 1, 2, channels) if channels % n == 0])
    out = groups * chance.choice([1, 2, 3, 5])
    dilation = chance.choice([1, 1, 2])
    kernel = (chance.choice([1, 3, 3]), chance.choice([1, 2, 3, 3]))
    conv = nn.Conv2d(
        channels,
        out,
        kernel,
        stride=chance.choice([1, 1, 2]),
        padding=(dilation, dilation),
        dilation=dilation,
        groups=groups,
        bias=bias,
    )
    pools = [nn.Identity(), nn.MaxPool2d(2, ceil_mode=True), nn.AvgPool2d(2, ceil_mode=True)]
    return [conv, norm(out), activation(chance), chance.choice([*pools, nn.Identity()])], out


def random_recurrent(chance: random.Random) -> tuple[nn.Module, tuple[int, ...]]:
    inputs, hidden = chance.choice(SIZES), chance.choice(SIZES)
    both = chance.random() < 0.3
    recurrent = chance.choice([nn.LSTM, nn.GRU])(
        inputs,
        hidden,
        num_layers=chance.choice([1, 1, 2]),
        bias=chance.random() < 0.7,
        bidirectional=both,
        batch_first=True,
    )
    head = nn.Linear(hidden * (2 if both else 1), CLASSES)
    return nn.Sequential(LastStep(recurrent), head), (chance.choice([1, 2, 5]), inputs)


def settle(model: nn.Module, shape: tuple[int, ...]) -> None:
    """Let lazy layers find their shape and batch norms their statistics.

    Norms get a shift: that of an emptied layer gives its shift everywhere, and at zero, where it
    begins, rounding alone would decide on which side of a ReLU it lies.
    """
    with torch.no_grad():
        model.train()(torch.randn(16, *shape) * 2 + 0.5)
        for module in model.modules():
            if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm)):
                module.bias.normal_()


def random_masks(chance: random.Random, model: nn.Module) -> snip.Masks:
    """Masks for most weights and some biases, with whole units pruned here and there."""
    layers = [n for n, m in model.named_modules() if type(m) in SPARSE_LAYERS]
    # Without a mask on such a layer the network is refused.
    certain = chance.choice([n for n, m in model.named_modules() if sparse_layer(m) is not None])
    masks = {}
    for name, parameter in model.named_parameters():
        layer, _, key = name.rpartition(".")
        if layer not in layers or (chance.random() < 0.15 and layer != certain):
            continue
        if "bias" in key and chance.random() < 0.7:
            continue
        mask = torch.rand(parameter.shape) < chance.choice(KEPT)
        if chance.random() < 0.3:
            mask[torch.rand(len(mask)) < 0.4] = False
        masks[name] = mask
    return snip.Masks(masks)


def accelerated(chance: random.Random, model: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    """The accelerated network, each layer in a random one of its ways."""
    batch = torch.randn(chance.choice(SIZES[1:]), *shape)
    sparse = snip.accelerate(model, batch, ways={})
    layers = {n: m for n, m in sparse.named_modules() if isinstance(m, PackedModule)}
    return snip.accelerate(
        model, batch, ways={name: chance.choice(layer.ways()) for name, layer in layers.items()}
    )


def compared(
    chance: random.Random, model: nn.Module, fast: nn.Module, shape: tuple[int, ...]
) -> str:
    """What differs between the networks on one random batch, in both modes; empty if nothing."""
    count = chance.choice(SIZES[1:])
    x, labels = torch.randn(count, *shape), torch.randint(0, CLASSES, (count,))
    for training in (True, False):
        dense, exact, quick = (copy.deepcopy(m).train(training) for m in (model, model, fast))
        with torch.no_grad():
            plain = quick.eval()(x), copy.deepcopy(model).eval()(x)
        true = computed(exact.double(), x.double(), labels)
        own, found = computed(dense, x, labels), computed(quick.train(training), x, labels)
        own["inference"], found["inference"] = plain[1], plain[0]
        true["inference"] = copy.deepcopy(model).double().eval()(x.double()).detach()
        wrong = differing(fast, true, own, found)
        if wrong:
            return f"batch of {count}, training {training}: {wrong}"
    return ""


def computed(network: nn.Module, x: torch.Tensor, labels: torch.Tensor) -> Values:
    """Outputs, buffers after the forward, and every gradient."""
    x = x.clone().requires_grad_()
    outputs = network(x)
    F.cross_entropy(outputs, labels).backward()
    gradients = {n: p.grad for n, p in network.named_parameters() if p.grad is not None}
    buffers = dict(network.named_buffers())
    return {"outputs": outputs.detach(), "input": x.grad, **buffers, **gradients}


def differing(fast: nn.Module, true: Values, own: Values, found: Values) -> str:
    """The names of values that are further from the truth than float32 excuses."""
    parameters = dict(fast.named_parameters())
    noise = 2e-6 * max(float(true[n].abs().max()) for n in parameters if true[n].numel())
    wrong = []
    for name, value in found.items():
        truth, dense = true[name], own[name]
        if name in parameters:
            truth, dense = (packed_gradient(fast, name, part) for part in (truth, dense))
        if not value.numel():
            continue
        scale, error = float(truth.abs().max()), float((value - truth).abs().max())
        allowed = max(1e-4 * scale, 5 * float((dense - truth).abs().max())) + max(noise, 1e-6)
        if not error <= allowed:
            wrong.append(f"{name} is off by {error:.2g} of {scale:.2g} (allowed {allowed:.2g})")
    return ", ".join(wrong)


@torch.no_grad()
def check_shrink(chance: random.Random, model: nn.Module, shape: tuple[int, ...]) -> None:
    """A shrunk network has the same outputs in float64."""
    exact = copy.deepcopy(model).double().eval()
    x = torch.randn(3, *shape).double()
    small = snip.shrink(exact, x)
    error = float((small(x) - exact(x)).abs().max())
    assert error <= 1e-9 * max(1.0, float(exact(x).abs().max())), f"{model}\nshrunk: off by {error}"
