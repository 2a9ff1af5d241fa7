"""One turn of bench/against.py, as JSON: python bench/against_turn.py CASE SECONDS ROUNDS TIMING

A turn has a process of its own, in which `snip` is that of one of two commits. To compare any two,
only public names are used, the networks are written here, and the timing loop is the file TIMING
of the checkout that compares. Masks come from noise, which are sparser than those from images in
the layers that cost the most.
"""

from __future__ import annotations

import copy
import json
import runpy
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import snip

# A rate at which no network diverges, however long it is timed.
SGD = {"lr": 1e-3, "momentum": 0.9, "weight_decay": 5e-4}
BURST = 0.1  # seconds of a round, at least: single short steps vary
INFERENCE_BATCHES = (64, 1)
Work = Callable[[], object]


def lenet_300_100() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(),
        nn.Linear(100, 10),
    )  # fmt: skip


def lenet_5_caffe() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10),
    )  # fmt: skip


def vgg_like() -> nn.Module:
    """Thirteen convolutions with batch norm, and two hidden layers."""
    layers: list[nn.Module] = []
    channels = 3
    for outputs, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(depth):
            convolution = nn.Conv2d(channels, outputs, 3, padding=1)
            layers += [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]
            channels = outputs
        layers.append(nn.MaxPool2d(2))
    for _ in range(2):
        layers += [nn.Flatten(), nn.Linear(512, 512), nn.BatchNorm1d(512), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(512, 10))


def vgg_11_bn() -> nn.Module:
    """torchvision's, with 129M weights, as its layers draw themselves."""
    from libraries import torchvision

    return torchvision.models.vgg11_bn(num_classes=10, init_weights=False).eval()


@dataclass(frozen=True)
class Case:
    """A network with its sparsity and batch, and what is timed of it."""

    build: Callable[[], nn.Module]
    sparsity: float
    batch: int
    shape: tuple[int, int, int]
    runs: bool = True  # else only pruning is timed

    def images(self, count: int) -> Tensor:
        return torch.randn(count, *self.shape)


CASES = {
    "lenet-300-100": Case(lenet_300_100, 0.98, 100, (1, 28, 28)),
    "lenet-5-caffe": Case(lenet_5_caffe, 0.99, 100, (1, 28, 28)),
    "vgg-like": Case(vgg_like, 0.97, 128, (3, 32, 32)),
    "vgg-11-bn": Case(vgg_11_bn, 0.95, 16, (3, 64, 64), runs=False),
}


def step(model: nn.Module, images: Tensor, labels: Tensor) -> Work:
    """The body of an ordinary loop."""
    optimizer = torch.optim.SGD(model.parameters(), **SGD)

    def work() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return work


def inference(model: nn.Module, images: Tensor) -> Work:
    def work() -> None:
        with torch.inference_mode():
            model(images)

    return work


def works(case: Case) -> Iterator[tuple[str, Work, Work | None]]:
    """What is timed: a name, the work, and what restores the network before each round of it."""
    torch.manual_seed(0)
    model, images = case.build(), case.images(case.batch)
    labels = torch.randint(0, 10, (case.batch,))
    drawn = copy.deepcopy(model.state_dict())

    def prune() -> None:
        snip.prune(model, (images, labels), sparsity=case.sparsity)
        snip.release(model)

    yield "prune", prune, lambda: model.load_state_dict(drawn)
    if not case.runs:
        return
    model.load_state_dict(drawn)
    snip.prune(model, (images, labels), sparsity=case.sparsity)
    yield "dense masked step", step(copy.deepcopy(model).train(), images, labels), None
    fast = snip.accelerate(copy.deepcopy(model).train(), (images, labels))
    yield "accelerated step", step(fast, images, labels), None
    for count in INFERENCE_BATCHES:
        some = case.images(count)
        fast = snip.accelerate(copy.deepcopy(model).eval(), some)
        yield f"inference, batch {count}", inference(fast, some), None


def main() -> None:
    name, seconds, rounds, timing = sys.argv[1:]
    best_times = runpy.run_path(timing)["best_times"]
    warnings.simplefilter("ignore")
    times = {}
    for work_name, work, restore in works(CASES[name]):
        burst = 0.0 if restore else BURST  # a network is pruned as it was drawn, each time
        times[work_name] = best_times(
            {"": work}, rounds=int(rounds), seconds=float(seconds), setup=restore, burst=burst
        )[""]
    print(json.dumps(times))


if __name__ == "__main__":
    main()
