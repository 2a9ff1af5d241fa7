"""Times whole networks, or single layers, against each other on the user's batch.

`snip.accelerate` and the training loop's engine "auto" both ask here whether sparse is worth it.
How each layer of a traced network runs is timed before that, in `convert.ways`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from snip.anatomy.calling import Call, arguments, call, mapped, tensors_in
from snip.anatomy.undisturbed import undisturbed
from snip.common.progress import track
from snip.common.timing import Work, best_times

SPARSE, DENSE = "sparse", "dense"
NOISE = 1.02  # a network that is slower by less than this is not slower
SECONDS, LAYER_SECONDS = 2.0, 0.05  # of timing for a whole network and for a layer, about
FEWEST, FEW, MOST = 2, 6, 20  # turns that count, after one that prepares what the others find ready
BURST = 0.005  # seconds of a turn, at least

Seconds = dict[str, float]
WorkOf = Callable[[nn.Module], Work]


def is_slower(seconds: Mapping[str, float]) -> bool:
    """Whether sparse is slower than dense, beyond what timing makes of chance."""
    return seconds[SPARSE] > NOISE * seconds[DENSE]


def timing_decides() -> bool:
    """Whether parameters may depend on timings: not where processes must have the same ones."""
    group = torch.distributed
    return not (group.is_available() and group.is_initialized() and group.get_world_size() > 1)


def step_seconds(dense: nn.Module, sparse: nn.Module, work_of: WorkOf) -> Seconds:
    """Best seconds of the work of each; weights, buffers and modes stay as they were."""
    turns = track(range(1 + MOST), description="timing the network", total=1 + MOST)
    return _best_of(turns, dense, sparse, work_of, SECONDS)


def _best_of(
    turns: Iterable[int], dense: nn.Module, sparse: nn.Module, work_of: WorkOf, seconds: float
) -> Seconds:
    best, spent = {DENSE: math.inf, SPARSE: math.inf}, 0.0
    with undisturbed(dense), undisturbed(sparse):
        works = {DENSE: work_of(dense), SPARSE: work_of(sparse)}
        for turn in turns:
            found = best_times(works, rounds=1, warmup=0, burst=BURST)
            spent += sum(found.values())
            if turn > 0:
                best = {name: min(best[name], found[name]) for name in works}
            if turn >= FEWEST and spent > seconds:
                break
    return best


def step_of(inputs: Any, *, training: bool, keywords: Mapping[str, Any] | None = None) -> WorkOf:
    """The work of a network in its present mode: forward and backward, or forward alone.

    With `keywords`, it is called on just these and on all of `inputs`, by position.
    """

    def work_of(network: nn.Module) -> Work:
        args, kwargs = arguments(network, inputs) if keywords is None else (inputs, keywords)
        if not training:
            return torch.no_grad()(lambda: network(*args, **kwargs))
        given = tensors_in((args, kwargs))
        wanted = [t for t in (*network.parameters(), *given) if t.requires_grad]
        return torch.enable_grad()(lambda: _backward(network(*args, **kwargs), wanted))

    return work_of


def losing_layers(dense: nn.Module, sparse: nn.Module, names: list[str], inputs: Any) -> list[str]:
    """Which of the layers are slower sparse, or fail, each alone on what the model gives it."""
    given = _given(dense, names, inputs)
    losing = []
    for name in track(list(given), description="timing layers", total=len(given)):
        args, kwargs = given.pop(name)
        work_of = step_of(args, keywords=kwargs, training=dense.training)
        layers = dense.get_submodule(name), sparse.get_submodule(name)
        try:
            loses = is_slower(_best_of(range(1 + FEW), *layers, work_of, LAYER_SECONDS))
        except Exception:  # it does not take what it is given here
            loses = True
        if loses:
            losing.append(name)
    return losing


def _given(model: nn.Module, names: list[str], inputs: Any) -> dict[str, Call]:
    """What each layer is called with first, with gradients where they are needed."""
    given: dict[str, Call] = {}
    with undisturbed(model), torch.set_grad_enabled(model.training), ExitStack() as stack:
        for name in names:

            def note(_layer: nn.Module, args: Any, kwargs: Any, name: str = name) -> None:
                given.setdefault(name, _leaves((args, kwargs)))

            hook = model.get_submodule(name).register_forward_pre_hook(note, with_kwargs=True)
            stack.callback(hook.remove)
        call(model, inputs)
    return given


def _leaves(value: Any) -> Any:
    """A structure with copies of its tensors that belong to no graph.

    What is one tensor in it stays one: attention asks whether its queries are its keys.
    """
    made: dict[torch.Tensor, torch.Tensor] = {}

    def leaf(tensor: torch.Tensor) -> torch.Tensor:
        if tensor not in made:
            made[tensor] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        return made[tensor]

    return mapped(value, leaf)


def _backward(outputs: Any, wanted: list[torch.Tensor]) -> None:
    """Gradients of the summed outputs, which are left nowhere."""
    differentiable = [y for y in tensors_in(outputs) if y.requires_grad]
    if differentiable and wanted:
        seeds = [torch.ones_like(y) for y in differentiable]
        torch.autograd.grad(differentiable, wanted, seeds, allow_unused=True)
