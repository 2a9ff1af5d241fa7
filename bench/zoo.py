"""Every network that people bring: pruned, trained, accelerated, evaluated, saved and loaded.

    python bench/zoo.py                       # 18 networks at 90% and 98%: a quarter of an hour
    python bench/zoo.py gpt-2 u-net --sparsity 0.95
    python bench/zoo.py --seconds 0           # does it work at all: no time for good timings

Each row is one network with Snip's defaults and an ordinary loop. "dense" is the network without
Snip, the faster of eager and channels last; the ratios are its time over that of the network that
`snip.accelerate` returns. Prune is in forward+backward passes of the same batch.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rivals import plain_copy
from torch import nn
from zoo_networks import ZOO, Network

import snip
from snip.anatomy.accelerated import Accelerated
from snip.anatomy.calling import call, tensors_in
from snip.common.timing import Work, best_times
from snip.scoring.batches import cross_entropy

SPARSITIES = (0.90, 0.98)
SECONDS = 1.5  # of measuring per way, about
STEPS = 5  # of training before anything is compared
TOLERANCE = 1e-3  # of the largest output: batch norm magnifies rounding
OPTIMIZERS = {
    "SGD": lambda weights: torch.optim.SGD(weights, lr=1e-3, momentum=0.9, weight_decay=5e-4),
    "AdamW": lambda weights: torch.optim.AdamW(weights, lr=1e-4),
}


def loss_of(network: Network, model: nn.Module, batch: Any) -> torch.Tensor:
    return (network.loss_fn or cross_entropy)(model, batch)


def loop(network: Network, model: nn.Module, batch: Any, optimizer: str) -> Work:
    """The step of the loop that everybody writes."""
    chosen = OPTIMIZERS[optimizer](model.train().parameters())

    def step() -> None:
        chosen.zero_grad()
        loss_of(network, model, batch).backward()
        chosen.step()

    return step


def dense_ways(model: nn.Module, batch: Any) -> dict[str, tuple[nn.Module, Any]]:
    """The network without Snip, and a batch in the memory format that it likes."""
    ways = {"eager": (plain_copy(model), batch)}
    pictures = isinstance(batch, tuple) and batch[0].ndim == 4
    if pictures and any(isinstance(layer, nn.Conv2d) for layer in model.modules()):
        last = plain_copy(model).to(memory_format=torch.channels_last)
        images = batch[0].contiguous(memory_format=torch.channels_last)
        ways["channels last"] = (last, (images, *batch[1:]))
    return ways


def prune_ratio(network: Network, model: nn.Module, batch: Any, sparsity: float) -> float:
    """Seconds of `snip.prune` over those of one forward and backward pass."""

    def passes() -> None:
        loss_of(network, model, batch).backward()
        model.zero_grad()

    def prune() -> None:
        snip.prune(model, batch, sparsity=sparsity, loss_fn=network.loss_fn)
        snip.release(model)

    drawn = copy.deepcopy(model.state_dict())
    ways = {"passes": passes, "prune": prune}
    times = best_times(ways, rounds=2, setup=lambda: model.load_state_dict(drawn))
    model.load_state_dict(drawn)
    return times["prune"] / times["passes"]


def paths(network: Network, model: nn.Module, masks: snip.Masks, batch: Any) -> str:
    """The share of the kept connections that lie on a path from input to output."""
    report = snip.report(model, masks, inputs=network.inputs(batch))
    if report.effective_kept is None:
        return "?"
    return f"{report.effective_kept / report.kept:.0%}" if report.effective_kept else "none"


def training_ratio(network: Network, model: nn.Module, batch: Any, optimizer: str, seconds: float):
    """Dense over accelerated seconds of a step, and whether the network ran sparse."""
    fast = snip.accelerate(copy.deepcopy(model).train(), network.inputs(batch))
    ways = {"ours": loop(network, fast, batch, optimizer)}
    for name, (dense, given) in dense_ways(model, batch).items():
        ways[name] = loop(network, dense, given, optimizer)
    return ratio(ways, seconds), fast


def inference_ratio(network: Network, model: nn.Module, batch: Any, seconds: float):
    fast = snip.accelerate(copy.deepcopy(model).eval(), network.inputs(batch))

    def infer(model: nn.Module, batch: Any) -> Callable[[], Any]:
        inputs = network.inputs(batch)
        return torch.no_grad()(partial(call, model.eval(), inputs))

    ways = {"ours": infer(fast, batch)}
    for name, (dense, given) in dense_ways(model, batch).items():
        ways[name] = infer(dense, given)
    check_equal(ways["ours"](), ways["eager"]())
    return ratio(ways, seconds), fast


def ratio(ways: dict[str, Work], seconds: float) -> float:
    times = best_times(ways, rounds=3, seconds=seconds)
    ours = times.pop("ours")
    return min(times.values()) / ours


def check_equal(found: Any, expected: Any) -> None:
    for one, other in zip(tensors_in(found), tensors_in(expected), strict=True):
        if other.is_floating_point():
            largest = float(other.abs().max())
            torch.testing.assert_close(one, other, rtol=0, atol=TOLERANCE * largest)


def train_a_little(network: Network, model: nn.Module, batch: Any, masks: snip.Masks) -> None:
    """A few steps, after which the loss is a number and every zero is still one."""
    step = loop(network, model, batch, "SGD")
    for _ in range(STEPS):
        step()
    if not torch.isfinite(loss_of(network, model, batch)):
        raise ArithmeticError("the loss is not finite after a few steps")
    for name, mask in masks.items():
        if model.get_parameter(name).detach()[~mask].any():
            raise ArithmeticError(f"{name} has weights where its mask has none")


def save_and_load(network: Network, trained: nn.Module, batch: Any) -> None:
    """The weights of a trained, accelerated network, loaded into a new one and accelerated."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.pt"
        torch.save(trained.state_dict(), path)
        again = network.build()
        again.load_state_dict(torch.load(path, weights_only=True))
    inputs = network.inputs(batch)
    fast = snip.accelerate(again.eval(), inputs)
    with torch.no_grad():
        check_equal(call(fast, inputs), call(trained.eval(), inputs))


def cells(network: Network, sparsity: float, seconds: float) -> Iterator[str]:
    """The stages of a user's work with one network, each with what was measured."""
    torch.manual_seed(0)
    model, batch = network.build().train(), network.batch()
    yield f"prune {prune_ratio(network, model, batch, sparsity):.1f}x"
    masks = snip.prune(model, batch, sparsity=sparsity, loss_fn=network.loss_fn)
    yield f"on paths {paths(network, model, masks, batch)}"
    train_a_little(network, model, batch, masks)
    for optimizer in OPTIMIZERS:
        gain, trained = training_ratio(network, model, batch, optimizer, seconds)
        yield f"{optimizer} {gain:.2f}x{engine(trained)}"
    gain, fast = inference_ratio(network, model, batch, seconds)
    yield f"inference {gain:.2f}x{engine(fast)}"
    save_and_load(network, trained, batch)


def engine(model: nn.Module) -> str:
    """Marks a network that `accelerate` gave back as it was."""
    return "" if isinstance(model, Accelerated) else " (dense)"


def row(network: Network, sparsity: float, seconds: float) -> str:
    """The cells up to what went wrong, if anything did: the table shows every network."""
    done = []
    try:
        for cell in cells(network, sparsity, seconds):
            done.append(cell)
    except Exception as error:  # whatever a network and Snip make of each other
        done.append(f"FAILED: {type(error).__name__}: {str(error).splitlines()[0][:200]}")
    return "; ".join(done)


def main() -> None:
    names = [network.name for network in ZOO]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", metavar="network", help=", ".join(names))
    parser.add_argument("--sparsity", type=float, nargs="*", default=SPARSITIES)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    options = parser.parse_args()
    unknown = set(options.networks) - set(names)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; the zoo has {', '.join(names)}")
    warnings.simplefilter("ignore")
    print(f"the zoo, {torch.get_num_threads()} threads, ratios over dense")
    for network in ZOO:
        if network.name in options.networks or not options.networks:
            for sparsity in options.sparsity:
                text = row(network, sparsity, options.seconds)
                print(f"  {network.name:20} {sparsity:.0%}: {text}", flush=True)


if __name__ == "__main__":
    main()
