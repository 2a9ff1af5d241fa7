"""One row of the zoo's table, as JSON: python bench/zoo_row.py gpt-2 0.98 1.5

A row has a process of its own, in which `snip` may also be that of another checkout: only what
older versions have, too, is imported from it.
"""

from __future__ import annotations

import copy
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from cases import OPTIMIZERS, ordinary_step, times_as_drawn
from rivals import dense_torch, plain_copy
from torch import nn
from zoo_networks import ZOO, Network

import snip
from snip.common.text import first_line
from snip.common.timing import Work, best_times
from snip.network.calls import call, tensors_in
from snip.network.parameters import Accelerated
from snip.scoring.batches import cross_entropy

SEED = 0
STEPS = 5  # of training before anything is compared
TOLERANCE = 1e-3  # of the largest output: batch norm magnifies rounding


def loss_of(network: Network, model: nn.Module, batch: Any) -> torch.Tensor:
    return (network.loss_fn or cross_entropy)(model, batch)


def loop(network: Network, model: nn.Module, batch: Any, optimizer: str) -> Work:
    """The step of the loop that everybody writes."""
    chosen = OPTIMIZERS[optimizer](model.train())
    return ordinary_step(lambda: loss_of(network, model, batch), chosen)


def dense_ways(model: nn.Module, batch: Any) -> dict[str, tuple[nn.Module, Any]]:
    """The network without Snip, and a batch in the memory format that it likes."""
    if not isinstance(batch, tuple) or batch[0].ndim != 4:
        return {"eager": (plain_copy(model), batch)}
    rivals = dense_torch(model, compiling=False)
    made = {name: rival(model, batch[0]) for name, rival in rivals.items()}
    return {name: (dense, (images, *batch[1:])) for name, (dense, images) in made.items()}


def prune_ratio(network: Network, model: nn.Module, batch: Any, sparsity: float) -> float:
    """Seconds of `snip.prune` over those of one forward and backward pass."""

    def passes() -> None:
        loss_of(network, model, batch).backward()
        model.zero_grad()

    def prune() -> None:
        snip.prune(model, batch, sparsity=sparsity, loss_fn=network.loss_fn)
        snip.release(model)

    times = times_as_drawn({"passes": passes, "prune": prune}, model, rounds=2)
    return times["prune"] / times["passes"]


def paths(network: Network, model: nn.Module, masks: snip.Masks, batch: Any) -> float | None:
    """The share of the kept connections on a path from input to output; None if not known."""
    report = snip.report(model, masks, inputs=network.inputs(batch))
    return None if report.effective_kept is None else report.effective_kept / report.kept


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


def cells(network: Network, sparsity: float, seconds: float) -> Iterator[dict[str, Any]]:
    """The stages of a user's work with one network, each with what was measured."""
    torch.manual_seed(SEED)
    model, batch = network.build().train(), network.batch()
    yield {"prune": prune_ratio(network, model, batch, sparsity)}
    masks = snip.prune(model, batch, sparsity=sparsity, loss_fn=network.loss_fn)
    yield {"on paths": paths(network, model, masks, batch)}
    train_a_little(network, model, batch, masks)
    for optimizer in OPTIMIZERS:
        gain, trained = training_ratio(network, model, batch, optimizer, seconds)
        yield {optimizer: gain, f"{optimizer} engine": engine(trained)}
    gain, fast = inference_ratio(network, model, batch, seconds)
    yield {"inference": gain, "inference engine": engine(fast)}
    save_and_load(network, trained, batch)


def engine(model: nn.Module) -> str:
    """Dense is a network that `accelerate` gave back as it was."""
    return "sparse" if isinstance(model, Accelerated) else "dense"


def row(network: Network, sparsity: float, seconds: float) -> dict[str, Any]:
    """The cells up to what went wrong, if anything did: the table shows every network."""
    done: dict[str, Any] = {}
    try:
        for cell in cells(network, sparsity, seconds):
            done |= cell
    except Exception as error:  # whatever a network and Snip make of each other
        done["failed"] = f"{type(error).__name__}: {first_line(error)}"
    return done


def main() -> None:
    name, sparsity, seconds = sys.argv[1:]
    warnings.simplefilter("ignore")
    network = next(network for network in ZOO if network.name == name)
    print(json.dumps(row(network, float(sparsity), float(seconds))))


if __name__ == "__main__":
    main()
