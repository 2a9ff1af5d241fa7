"""Read what a real forward shows: its call, uses of each weight, outputs that are learned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrize import ParametrizationList
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from snip.distributed.wrapped import inner, is_compiled, unwrap
from snip.network.calls import Call, first_tensor, tensors_in
from snip.network.norms import normed_weights
from snip.network.operations import Kind, operation_of
from snip.network.path_sequences import ATTENTION_ARGUMENTS
from snip.network.untouched import undisturbed

Edge = tuple[Any, int]  # how autograd names a tensor: the node that made it, and which of its own

LAYERS = (Kind.LINEAR, Kind.CONVOLUTION, Kind.TRANSPOSED_CONVOLUTION)
MATRIX_PRODUCTS = ("matmul", "mm", "mv", "bmm")  # of their two arguments
SUMS_OF_PRODUCTS = ("addmm", "addmv", "baddbmm")  # a tensor is added to a product of two more
# Questions whose answer is the same for a sparse layer's weights.
HARMLESS = tuple(
    getattr(torch.Tensor, name).__get__
    for name in ("dtype", "device", "is_cuda", "requires_grad", "grad")
)


@dataclass(frozen=True)
class Seen:
    """Facts that forwards of a model showed."""

    call: Call | None = None  # the first one
    samples: int = 0
    batches: int = 0
    batch_dim: int = 0  # 1 if a recurrent layer or attention showed that time comes first
    uses: Mapping[str, float] = field(default_factory=dict)  # of each element, per sample
    outside: frozenset[Any] = frozenset()  # parameters used while their layer was not running
    learned: LearnedOutputs | None = None


class Reader(TorchFunctionMode):
    """Reads any forwards of a model inside the block; `.seen` may be read at any time.

    Uses are told by the functions that a forward calls, and not by its layers: a forward may
    multiply with a weight by itself. What a loss computes with weights is no cost of the model, nor
    is what activation checkpointing computes again in the backward pass.
    """

    def __init__(
        self, model: nn.Module, layers: Iterable[nn.Module] = (), *, eager: bool = False
    ) -> None:
        super().__init__()
        self._model = unwrap(model)
        # Compiled code would be compiled anew to be watched, and once more afterwards.
        self._compiled = not eager and _is_compiled(model)
        # A compiled module ignores hooks that come later; what wraps it does not.
        self._root = inner(model) if self._compiled else self._model
        self._look: Seen | None = None  # of a compiled model, its first call run eagerly
        self._names = [name for name, _ in self._model.named_parameters()]
        # Each parameter or buffer, and what is computed from these alone -> the parameter that it
        # is but for its values (cast, scaled, divided by its norm), or None.
        self._known = WeakTensorKeyDictionary()
        self._known.update(dict.fromkeys(self._model.buffers()))
        self._known.update({p: name for name, p in self._model.named_parameters()})
        self._stored = _stored(self._model)
        self._owners: dict[Any, nn.Module] = {
            p: x for x in reversed(list(layers)) for p in x.parameters()
        }
        self._at_work: Counter[nn.Module] = Counter()
        self._running = False  # whether the whole model's forward is
        self._call: Call | None = None
        self._samples = self._batches = self._batch_dim = 0
        self._root_shape: torch.Size | None = None
        self._counts: dict[str, float] = {}
        self._outside: set[torch.Tensor] = set()
        self._learned = LearnedOutputs()
        self._stack = ExitStack()

    @property
    def seen(self) -> Seen:
        """Facts from the forwards so far; of a compiled model, the first call run eagerly."""
        if self._compiled and self._call is not None and self._look is None:
            self._look = look(self._model, self._call)
        if self._look is not None:
            uses, batch_dim = self._look.uses, self._look.batch_dim
        else:
            counts, batch_dim = self._counts, self._batch_dim
            known = [name for name in self._names if name in counts and self._samples]
            uses = {name: counts[name] / self._samples for name in known}
        numbers = self._samples, self._batches, batch_dim
        return Seen(self._call, *numbers, uses, frozenset(self._outside), self._learned)

    def __enter__(self) -> Any:
        def hook(handle: Any) -> None:
            self._stack.callback(handle.remove)

        hook(self._root.register_forward_pre_hook(self._begin, with_kwargs=True))
        hook(self._root.register_forward_hook(self._end))
        for layer in set(self._owners.values()):
            hook(layer.register_forward_pre_hook(lambda layer, _: self._count(layer, 1)))
            hook(
                layer.register_forward_hook(
                    lambda layer, *_: self._count(layer, -1), always_call=True
                )
            )
        return self if self._compiled else super().__enter__()

    def __exit__(self, *error: Any) -> None:
        self._stack.close()
        self._running = False
        if not self._compiled:
            super().__exit__(*error)

    def _begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Count the samples of a forward of the whole model, and remember the first call."""
        self._running = True
        self._batches += 1
        self._call = self._call or Call(args, kwargs)
        given = [*args, *kwargs.values()]
        self._root_shape = None
        if given and isinstance(given[0], PackedSequence):
            self._samples += int(given[0].batch_sizes[0])
            return
        tensor = first_tensor(given)
        if tensor is not None and tensor.ndim:
            self._samples += len(tensor)
            self._root_shape = tensor.shape

    def _end(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._running = False
        self._learned.watch(output)

    def _count(self, layer: nn.Module, change: int) -> None:
        self._at_work[layer] += change

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the function as it is, and look at what it was given."""
        kwargs = kwargs or {}
        if self._owners and func not in HARMLESS:
            for tensor in tensors_in((args, kwargs)):
                owner = self._owners.get(tensor)
                if owner is not None and not self._at_work[owner]:
                    self._outside.add(tensor)
        result = func(*args, **kwargs)
        self._note_computed(args, kwargs, result)
        if self._running:
            self._read(func, result, args, kwargs)
        return result

    def _note_computed(self, args: Any, kwargs: Any, result: Any) -> None:
        """Remember what is computed from parameters and buffers alone, such as a weight's norm."""
        if not args or not isinstance(result, torch.Tensor) or not self._is_known(args[0]):
            return
        tensors = list(tensors_in((args, kwargs)))
        if result not in self._known and all(map(self._is_known, tensors)):
            same = (x for x in tensors if x.numel() == result.numel() == _whole(x).numel())
            self._known[result] = next(filter(None, map(self._name, same)), None)

    def _is_known(self, tensor: Any) -> bool:
        return isinstance(tensor, torch.Tensor) and (
            tensor in self._known or _whole(tensor) in self._known
        )

    def _name(self, tensor: torch.Tensor) -> str | None:
        return self._known.get(tensor) or self._known.get(_whole(tensor))

    def _read(self, func: Any, result: Any, args: Any, kwargs: Any) -> None:
        operation = operation_of(func)
        kind, name = operation.kind, operation.name
        if kind in LAYERS:
            self._layer(kind, result, *args[:3], **_layer_arguments(kwargs))
        elif kind is Kind.RECURRENT:
            self._recurrent(*args)
        elif kind is Kind.CELL:
            self._use_all(args[2:], args[0].numel() / args[0].shape[-1])
        elif name == "multi_head_attention_forward":
            named = dict(zip(ATTENTION_ARGUMENTS, args[3:], strict=False)) | kwargs
            self._attention(args[:3], named)
        elif name == "bilinear":
            self._use_all((*args[2:], *kwargs.values()), result.numel() / result.shape[-1])
        elif name in MATRIX_PRODUCTS and len(args) >= 2:
            self._product(result, *args[:2])
        elif name in SUMS_OF_PRODUCTS and len(args) >= 3:
            self._use(args[0], _ratio(result, args[0]))
            self._product(result, *args[1:3])

    def _use(self, tensor: Any, count: float) -> None:
        """Count uses of a tensor, which may be a parameter or a view of one."""
        name = self._name(tensor) if isinstance(tensor, torch.Tensor) else None
        if name is not None:
            part = _ratio(tensor, _whole(tensor))
            self._counts[name] = self._counts.get(name, 0.0) + count * part

    def _use_all(self, tensors: Iterable[Any], count: float) -> None:
        for tensor in tensors:
            self._use(tensor, count)

    def _layer(self, kind: Kind, result: Any, input: Any, weight: Any, bias: Any = None) -> None:
        spread = kind is Kind.TRANSPOSED_CONVOLUTION  # whose weight is [in, out, ...]
        units = len(weight) if weight.ndim > 1 else 1
        self._use(weight, (input if spread else result).numel() / max(1, units))
        if bias is not None:
            self._use(bias, _ratio(result, bias))

    def _product(self, result: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
        constant = self._is_known(left) and self._is_known(right)
        if constant and not self._stored.isdisjoint((self._name(left), self._name(right))):
            return  # a layer computes its weight, as under spectral norm: that is no use of it
        products = result.numel() * left.shape[-1]
        for factor in (left, right):
            self._use(factor, products / max(1, factor.numel()))

    def _recurrent(self, data: torch.Tensor, *rest: Any) -> None:
        """Steps times sequences; a packed sequence knows its real steps."""
        packed = isinstance(rest[0], torch.Tensor) and isinstance(rest[2], (list, tuple))
        self._use_all(rest[2] if packed else rest[1], data.numel() / data.shape[-1])
        if not packed and not rest[-1]:
            self._see_time_first(data)

    def _attention(self, data: tuple[Any, ...], named: dict[str, Any]) -> None:
        self._see_time_first(data[0])
        q, k, v = (x.numel() / x.shape[-1] for x in data)
        packed = (q + k + v) / 3  # one tensor holds the three projections
        self._use_all((named["in_proj_weight"], named["in_proj_bias"]), packed)
        self._use_all((named["out_proj_weight"], named["out_proj_bias"]), q)
        for part, count in zip("qkv", (q, k, v), strict=True):
            self._use(named.get(f"{part}_proj_weight"), count)

    def _see_time_first(self, data: torch.Tensor) -> None:
        # The first dimension counts as samples until a time-first layer meets the very same
        # two leading dimensions: then the second one does.
        shape = self._root_shape
        if shape is not None and data.ndim == 3 and data.shape[:2] == shape[:2]:
            self._samples += shape[1] - shape[0]
            self._root_shape, self._batch_dim = None, 1


def look(model: nn.Module, call: Call, *, training: bool = False) -> Seen:
    """Read one forward pass; the model is left as found."""
    model = unwrap(model)
    # Inference mode is left, because in it a view does not know its parameter.
    with (
        undisturbed(model),
        torch.inference_mode(False),
        torch.no_grad(),
        _eagerly(model),
        Reader(model, eager=True) as reader,
    ):
        call.run(model.train(training))
    return reader.seen


def used_outside(model: nn.Module, layers: Iterable[nn.Module], call: Call) -> frozenset[Any]:
    """Parameters of `layers` that the model reads outside of their forward, in either mode.

    Such as a weight that is also multiplied with elsewhere: it must keep its ordinary shape. What a
    layer inside another of the layers has may be read by either.
    """
    reader = Reader(model, layers, eager=True)
    for training in (True, False):
        # A forward may refuse such a batch in train mode; what it has read until then counts.
        with (
            undisturbed(model),
            _eagerly(model),
            torch.no_grad(),
            suppress(Exception),
            reader,
        ):
            call.run(model.train(training))
    return reader.seen.outside


def _is_compiled(model: nn.Module) -> bool:
    return any(is_compiled(m) or m._compiled_call_impl is not None for m in model.modules())


def _eagerly(model: nn.Module) -> AbstractContextManager[Any]:
    """Run compiled parts of a model as they were written; dynamo takes long to import."""
    return torch.compiler.set_stance("force_eager") if _is_compiled(model) else nullcontext()


def _stored(model: nn.Module) -> set[str]:
    """Parameters from which layers compute their weights."""
    names = {p: name for name, p in model.named_parameters()}
    lists = (m for m in model.modules() if isinstance(m, ParametrizationList))
    return {names[p] for m in lists for p in m.parameters()} | set(normed_weights(model))


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that this one is a view of, or itself."""
    return tensor if tensor._base is None else tensor._base


def _ratio(one: torch.Tensor, other: torch.Tensor) -> float:
    return one.numel() / max(1, other.numel())


def _layer_arguments(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: kwargs[name] for name in ("input", "weight", "bias") if name in kwargs}


def floats_in(output: Any) -> list[torch.Tensor]:
    """The floating-point tensors that a model returned."""
    return [x for x in tensors_in(output) if x.is_floating_point()]


class LearnedOutputs:
    """Watches what a model returns while a loss of it is differentiated.

    Outputs are told by their places among the floating-point tensors. In eval mode a model may
    return others than in training: only what has as many tensors of the same dimensions is known.
    """

    def __init__(self) -> None:
        self._arrived: dict[tuple[int, ...], set[int]] = {}  # dimensions -> places with a gradient
        self._onward: dict[tuple[int, ...], dict[int, set[int]]] = {}  # place -> those it leads to

    @classmethod
    def of_all(cls, found: Iterable[LearnedOutputs]) -> LearnedOutputs:
        """Join notes of ranks about one model: every output that any of them learns from."""
        joined = cls()
        for one in found:
            for kind, places in one._arrived.items():
                joined._arrived.setdefault(kind, set()).update(places)
            joined._onward = one._onward | joined._onward
        return joined

    def watch(self, output: Any) -> None:
        """Note where a gradient arrives, whenever one does."""
        found = floats_in(output)
        made = {i: x for i, x in enumerate(found) if x.grad_fn is not None}
        if torch.compiler.is_compiling() or len(found) < 2 or not made:
            return
        kind = _dimensions(found)
        arrived = self._arrived.setdefault(kind, set())
        if kind not in self._onward:
            self._onward[kind] = _onward({i: x for i, x in made.items() if x.ndim})
        for place, tensor in made.items():
            tensor.register_hook(lambda _, place=place: arrived.add(place))

    def among(self, output: Any) -> list[torch.Tensor]:
        """The outputs that are learned; all if nothing is known.

        A loss beside the logits is no output. Nor is what a gradient reaches through another
        output, like the hidden states before the logits: paths are looked for at the end.
        """
        found = floats_in(output)
        kind = _dimensions(found)
        arrived, onward = self._arrived.get(kind, set()), self._onward.get(kind, {})
        learned = [found[i] for i in sorted(arrived) if not onward.get(i, set()) & arrived]
        learned = learned or found
        return [x for x in learned if x.ndim] or learned


def _dimensions(found: list[torch.Tensor]) -> tuple[int, ...]:
    return tuple(x.ndim for x in found)


def _onward(outputs: dict[int, torch.Tensor]) -> dict[int, set[int]]:
    """Place of each output -> places of the others that are computed from it."""
    onward: dict[int, set[int]] = {place: set() for place in outputs}
    for later, tensor in outputs.items():
        before = set(_edges_before(tensor))
        for place, other in outputs.items():
            if (other.grad_fn, other.output_nr) in before:
                onward[place].add(later)
    return onward


def _edges_before(tensor: torch.Tensor) -> Iterator[Edge]:
    """Everything in autograd's graph that a tensor is computed from."""
    waiting, seen = [tensor.grad_fn], {tensor.grad_fn}
    while waiting:
        for node, place in waiting.pop().next_functions:  # type: ignore[union-attr]
            yield node, place
            if node is not None and node not in seen:
                seen.add(node)
                waiting.append(node)
