"""Times whole networks, or single layers, against each other on the user's batch.

`snip.accelerate` and the training loop's engine "auto" both ask here whether sparse is worth it.
How each layer of a traced network runs is timed before that, in `convert.ways`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import nn

from snip.common.console import track
from snip.common.timing import Work, best_times
from snip.distributed.ranks import everybody
from snip.engine.layers.packing import DENSE, SPARSE
from snip.masks.holding import rezero
from snip.network.calls import Call, arguments, call, copy_of, mapped, tensors_in
from snip.network.untouched import undisturbed

PLANES = (nn.Conv2d, nn.ConvTranspose2d)
TIMING_NOISE = 1.02  # a network that is slower by less than this is not slower
SECONDS, LAYER_SECONDS = 2.0, 0.05  # of timing for a whole network and for a layer, about
FEWEST, FEW, MOST = 2, 6, 20  # turns that count, after one that prepares what the others find ready
BURST = 0.005  # seconds of a turn, at least

Seconds = dict[str, float]
WorkOf = Callable[[nn.Module], Work]


def is_slower(seconds: Mapping[str, float]) -> bool:
    """Whether sparse is slower than dense, beyond what timing makes of chance."""
    return seconds[SPARSE] > TIMING_NOISE * seconds[DENSE]


def timing_decides() -> bool:
    """Whether parameters may depend on timings: not where processes must have the same ones."""
    return everybody().alone


def step_seconds(dense: nn.Module, sparse: nn.Module, work_of: WorkOf) -> Seconds:
    """Best seconds of a step of each; weights, buffers and modes stay as they were.

    In training it includes the least that an optimiser does, and what it takes to hold masks.
    """
    networks = {DENSE: dense, SPARSE: sparse}
    return _best_of(networks, partial(_step, work_of=work_of), SECONDS, MOST, "timing the network")


def channels_last_seconds(model: nn.Module, work_of: WorkOf) -> float:
    """The same of the model in torch's other memory format, which suits many convolutions.

    Infinite if it has none over planes, is in that format already, or does not run in it.
    """
    weights = [layer.weight for layer in model.modules() if isinstance(layer, PLANES)]
    if all(weight.is_contiguous(memory_format=torch.channels_last) for weight in weights):
        return math.inf
    step_of_it = partial(_step, work_of=work_of)
    try:
        last = copy_of(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return _best_of({DENSE: last}, step_of_it, SECONDS, MOST, "timing channels last")[DENSE]
    except Exception:  # such as of x.view(len(x), -1), which takes torch's usual format only
        return math.inf


def _best_of(
    networks: Mapping[str, nn.Module], work_of: WorkOf, seconds: float, most: int, what: str = ""
) -> Seconds:
    with ExitStack() as stack:
        for network in networks.values():
            stack.enter_context(undisturbed(network))
        return best_times(
            {name: work_of(network) for name, network in networks.items()},
            rounds=FEWEST,
            seconds=seconds / len(networks),
            most=most,
            burst=BURST,
            shown=partial(track, description=what, total=1 + most) if what else iter,
        )


def _step(network: nn.Module, work_of: WorkOf) -> Work:
    """The work of a network, in training with the least that a step adds to it."""
    work = work_of(network)
    if not network.training:
        return work
    update = _update_of(network)

    def step() -> None:
        work()
        update()

    return step


def _update_of(network: nn.Module) -> Work:
    """Write each weight once, as any optimiser does at least, and hold the masks.

    All weights are written to one place, which takes little memory and leaves them as they are.
    Masks are held once here and twice in a step. There, a large mask that keeps little is held in
    less time, by an index (`SMALL` and `FEW` of `Keep`), which this network may not have yet.
    """
    trained = [p for p in network.parameters() if p.requires_grad]
    largest = max(trained, key=torch.numel, default=torch.zeros(0))
    weights, gradients = torch.zeros_like(largest).flatten(), torch.zeros_like(largest).flatten()
    pairs = [(weights[: p.numel()], gradients[: p.numel()]) for p in trained]

    def update() -> None:
        with torch.no_grad():
            for weight, gradient in pairs:
                weight.add_(gradient, alpha=-0.1)
        rezero(network)

    return update


def step_of(inputs: Any, *, training: bool, keywords: Mapping[str, Any] | None = None) -> WorkOf:
    """The work of a network in its present mode: forward and backward, or forward alone.

    With `keywords`, it is called on just these and on all of `inputs`, by position. It gets copies,
    and finds them as they were at every call: a forward may write into its input.
    """

    def work_of(network: nn.Module) -> Work:
        given = arguments(network, inputs) if keywords is None else (inputs, keywords)
        args, kwargs = own = _leaves(given)
        restore = _restoring(own, given)

        def forward() -> Any:
            restore()  # not after it: what is written then would spoil the backward pass
            return network(*args, **kwargs)

        if not training:
            return torch.no_grad()(forward)
        wanted = [t for t in (*network.parameters(), *tensors_in(own)) if t.requires_grad]
        return torch.enable_grad()(lambda: _backward(forward(), wanted))

    return work_of


def _restoring(own: Any, given: Any) -> Work:
    """Writes the numbers of `given` into tensors of `own` that were written into since."""
    pairs = list(zip(tensors_in(own), tensors_in(given), strict=True))
    pairs = [pair for pair in pairs if not pair[0].is_inference()]  # those count no writes
    versions = [mine._version for mine, _ in pairs]

    def restore() -> None:
        for at, (mine, theirs) in enumerate(pairs):
            if mine._version != versions[at]:
                mine.detach().copy_(theirs.detach())
                versions[at] = mine._version

    return restore


def losing_layers(dense: nn.Module, sparse: nn.Module, names: list[str], inputs: Any) -> list[str]:
    """Which of the layers are slower sparse, or fail, each alone on what the model gives it."""
    given = _given(dense, names, inputs)
    losing = []
    for name in track(list(given), description="timing layers", total=len(given)):
        args, kwargs = given.pop(name)
        work_of = step_of(args, keywords=kwargs, training=dense.training)
        layers = {DENSE: dense.get_submodule(name), SPARSE: sparse.get_submodule(name)}
        try:
            loses = is_slower(_best_of(layers, work_of, LAYER_SECONDS, FEW))
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
        call(model, _leaves(inputs))
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
