"""The cost of a connection: how often a forward uses each weight, and the FLOPs of that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.utils.rnn import PackedSequence

from snip.common.errors import InputError
from snip.distributed.wrappers import unwrap
from snip.network.calls import Call, call, copied, first_tensor
from snip.network.layout import is_conv1d
from snip.network.norms import stored_parameter
from snip.network.reader import LearnedOutputs
from snip.network.untouched import undisturbed
from snip.selection.functions import watched_functions

Uses = dict[str, float]
# module, its arguments by position and by name, its output -> uses of its own parameters
Rule = Callable[[Any, tuple[Any, ...], dict[str, Any], Any], Uses]

CELL_KEYS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


class UseCounter:
    """Collects uses while `count_uses` is active; `.uses` may be read at any time."""

    def __init__(self, model: nn.Module) -> None:
        self._names: dict[Any, str] = {p: name for name, p in model.named_parameters()}
        self._counts: Uses = {}
        self._samples = 0
        self._root_shape: torch.Size | None = None
        self._running = False  # whether the whole model's forward is
        self._inside = 0  # how many of the layers that are counted whole are at work
        self.call: Call | None = None  # what the whole model was first called with
        self.learned = LearnedOutputs()

    @property
    def uses(self) -> Uses:
        """Parameter name -> uses of each of its elements per sample; empty before a forward."""
        if not self._samples:
            return {}
        found = {name: self._counts.get(name, 0.0) for name in self._names.values()}
        return {name: count / self._samples for name, count in found.items() if count}

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before the whole model's forward: count the samples, and remember the call."""
        self._running = True
        given = [*args, *kwargs.values()]
        self.call = self.call or Call(args, kwargs)
        if given and isinstance(given[0], PackedSequence):
            self._samples += int(given[0].batch_sizes[0])
            return
        tensor = first_tensor(given)
        if tensor is not None and tensor.ndim:
            self._samples += len(tensor)
            self._root_shape = tensor.shape

    def end(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """After the whole model's forward: what a loss computes with weights is not its cost."""
        self._running = False
        self.learned.watch(output)

    def enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Before a layer's forward: what it computes is counted when it is done."""
        self._inside += 1

    def add(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        """After a layer's forward: add up the uses of its parameters."""
        self._inside -= 1
        if not self._running:  # activation checkpointing calls layers again, in the backward pass
            return
        self._correct_for_time_first(module, args, kwargs)
        rule = cast(Rule, _rule(module))  # only modules with a rule have this hook
        for key, count in rule(module, args, kwargs, output).items():
            owner, _, last = key.rpartition(".")
            self._add_to(stored_parameter(module.get_submodule(owner), last), count)

    def add_function(self, tensor: torch.Tensor, count: float) -> None:
        """After a function that uses `tensor`, which may be a parameter or a view of one."""
        if self._running and not self._inside:
            whole = tensor if tensor._base is None else tensor._base
            self._add_to(whole, count * tensor.numel() / max(1, whole.numel()))

    def _add_to(self, parameter: Any, count: float) -> None:
        name = self._names.get(parameter)
        if name is not None:
            self._counts[name] = self._counts.get(name, 0.0) + count

    def _correct_for_time_first(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        # The first dimension counts as samples until a time-first layer meets the very same
        # two leading dimensions: then the second one does.
        if self._root_shape is None or getattr(module, "batch_first", True):
            return
        tensor = first_tensor([*args, *kwargs.values()])
        if tensor is not None and tensor.ndim == 3 and tensor.shape[:2] == self._root_shape[:2]:
            self._samples += self._root_shape[1] - self._root_shape[0]
            self._root_shape = None


@contextmanager
def count_uses(model: nn.Module) -> Iterator[UseCounter]:
    """Record, during any forward passes inside the block, how often each weight is used."""
    given, model = model, unwrap(model)
    counter = UseCounter(model)
    handles = [model.register_forward_pre_hook(counter.begin, with_kwargs=True)]
    try:
        for module in model.modules():
            if _rule(module) is not None:
                # First, because a layer's own hooks may compute its weight, which is no use of it.
                handles.append(module.register_forward_pre_hook(counter.enter, prepend=True))
                handles.append(module.register_forward_hook(counter.add, with_kwargs=True))
        # Last, because the model may be a layer itself, which is counted before its forward ends.
        handles.append(model.register_forward_hook(counter.end))
        with watched_functions(given, counter.add_function):
            yield counter
    finally:
        for handle in handles:
            handle.remove()


def uses(model: nn.Module, inputs: Any) -> Uses:
    """Uses per sample from one forward pass in eval mode; the model is left as found."""
    model = unwrap(model)
    # Inference mode is left, because in it a view does not know its parameter.
    with (
        undisturbed(model),
        torch.inference_mode(False),
        torch.no_grad(),
        count_uses(model) as counter,
    ):
        model.eval()
        call(model, copied(inputs))
    return counter.uses


def flops_per_element(shape: torch.Size | tuple[int, ...], uses: float) -> float:
    """FLOPs per sample of one element: a weight multiplies and adds, a bias only adds."""
    return (2.0 if len(shape) > 1 else 1.0) * uses


def element_flops(
    tensors: Mapping[str, torch.Tensor], uses: Mapping[str, float]
) -> dict[str, float]:
    """FLOPs per sample of one element of each tensor."""
    for name in tensors:
        if not uses.get(name):
            raise InputError(
                f"the FLOPs of {name!r} are unknown: its layer was not seen at work in the model's "
                "own forward. Call model(...) in loss_fn, or leave it out with params=..."
            )
    return {name: flops_per_element(t.shape, uses[name]) for name, t in tensors.items()}


def flops(kept: Mapping[str, torch.Tensor], uses: Mapping[str, float]) -> float:
    """FLOPs per sample of the True elements, in the layers that `uses` knows."""
    return sum(
        int(mask.count_nonzero()) * flops_per_element(mask.shape, uses[name])
        for name, mask in kept.items()
        if name in uses
    )


def _linear(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Uses:
    rows = output.numel() / output.shape[-1]
    return {"weight": rows, "bias": rows}


def _conv(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Uses:
    positions = output.numel() / module.out_channels
    return {"weight": positions, "bias": positions}


def _conv_transpose(
    module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
) -> Uses:
    given = _argument(args, kwargs, 0, "input")
    return {
        "weight": given.numel() / module.in_channels,
        "bias": output.numel() / module.out_channels,
    }


def _recurrent(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Uses:
    """Steps times sequences, for layers and cells; a packed sequence knows its real steps."""
    given = _argument(args, kwargs, 0, "input")
    data = given.data if isinstance(given, PackedSequence) else given
    steps = data.numel() / module.input_size
    cell = isinstance(module, nn.RNNCellBase)
    keys = CELL_KEYS if cell else [key for layer in module._all_weights for key in layer]
    return dict.fromkeys(keys, steps)


def _attention(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Uses:
    # The out_proj module is never called, only its weight is used: it is counted here.
    query, key, value = (
        _argument(args, kwargs, i, name) for i, name in enumerate(("query", "key", "value"))
    )
    q = query.numel() / module.embed_dim
    k, v = key.numel() / module.kdim, value.numel() / module.vdim
    packed = (q + k + v) / 3  # one tensor holds the three projections
    return {
        "in_proj_weight": packed,
        "in_proj_bias": packed,
        "q_proj_weight": q,
        "k_proj_weight": k,
        "v_proj_weight": v,
        "out_proj.weight": q,
        "out_proj.bias": q,
    }


RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: _linear,
    nn.Bilinear: _linear,
    _ConvTransposeNd: _conv_transpose,  # before its base class
    _ConvNd: _conv,
    nn.RNNBase: _recurrent,
    nn.RNNCellBase: _recurrent,
    nn.MultiheadAttention: _attention,
}


def _rule(module: nn.Module) -> Rule | None:
    if is_conv1d(module):
        return _linear
    return next((rule for kind, rule in RULES.items() if isinstance(module, kind)), None)


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], index: int, name: str) -> Any:
    return args[index] if len(args) > index else kwargs[name]
