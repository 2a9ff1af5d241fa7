"""Follow masks through a network: which connections lie on a path from input to output.

The model's own forward runs on one sample, with each mask in place of its parameter, on numbers
that say "zero", "something" or "depends on an input" (`path_rules`). Forwards alone tell which
outputs an input reaches; one ordinary backward pass then tells which connections lie on a path. A
mode replaces PyTorch's functions, and not a traced graph, because it must also follow forwards that
torch.fx cannot trace.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import TorchFunctionMode

from snip.common.errors import InputError, first_line
from snip.distributed.wrapped import unwrap
from snip.network import path_rules as rules
from snip.network import path_sequences as sequences
from snip.network.calls import Call, arguments, device_of, first_tensor, mapped, tensors_in
from snip.network.norms import normed_weights
from snip.network.operations import IN_PLACE, Kind, operation_of
from snip.network.path_rules import DTYPE, FOLLOWED, HUGE, depends, limited
from snip.network.reader import LearnedOutputs, floats_in
from snip.network.untouched import undisturbed

Masks = Mapping[str, torch.Tensor]
Tensors = dict[str, torch.Tensor]
Rule = Callable[..., Any]  # rule(function, *args, **kwargs): `function` is the one replaced

LARGE_MASK = 1 << 20  # elements of a linear layer's mask that become floats at once
LARGEST_SAMPLE = 1 << 26  # values, which take 256 MB as float32
DTYPE_OF = torch.Tensor.dtype.__get__  # type: ignore[attr-defined]
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

BY_KIND: dict[Kind, Rule] = {
    Kind.POINTWISE: rules.pointwise,
    Kind.PRELU: rules.pointwise,
    Kind.DROPOUT: rules.pointwise,
    Kind.CAST: rules.cast,
    Kind.SUM: rules.plus,
    Kind.PRODUCT: rules.product,
    Kind.QUOTIENT: rules.quotient,
    Kind.POWER: rules.power,
    Kind.LINEAR: rules.linear_map,
    Kind.CONVOLUTION: rules.linear_map,
    Kind.TRANSPOSED_CONVOLUTION: rules.linear_map,
    Kind.MATRIX_PRODUCT: rules.linear_map,
    Kind.RECURRENT: sequences.recurrent,
    Kind.CELL: sequences.cell,
    Kind.BATCH_NORM: rules.channel_norm,
    Kind.MAX_POOL: rules.max_pool,
    Kind.ADAPTIVE_MAX_POOL: rules.adaptive_max_pool,
    Kind.EXTREME: rules.reduced,
}
BY_NAME: dict[str, Rule] = {  # of Kind.OTHER; a function without a rule (cat, sum) runs as it is
    **dict.fromkeys(("local_response_norm", "alpha_dropout", "feature_alpha_dropout"), rules.same),
    **dict.fromkeys(("softmax", "softmin", "gumbel_softmax"), rules.softmax),
    **dict.fromkeys(
        """logsumexp max min norm vector_norm std var std_mean var_mean""".split(),  # noqa: SIM905
        rules.reduced,
    ),
    "log_softmax": rules.never_zero,
    "where": rules.where,
    "masked_fill": rules.masked_fill,
    "glu": rules.glu,
    "cosine_similarity": rules.cosine_similarity,
    "pairwise_distance": rules.pairwise_distance,
    "layer_norm": rules.layer_norm,
    "rms_norm": rules.rms_norm,
    "group_norm": rules.group_norm,
    "instance_norm": rules.channel_norm,
    "normalize": rules.normalize,
    "_weight_norm": rules.weight_norm,
    "embedding": rules.embedding,
    "embedding_bag": rules.embedding,
    "scaled_dot_product_attention": sequences.scaled_dot_product_attention,
    "multi_head_attention_forward": sequences.multi_head_attention,
}


@dataclass(frozen=True)
class Reach:
    """Numbers in one sample's output: how many an input reaches, and how many there are."""

    reached: int
    outputs: int


@dataclass(frozen=True)
class Paths:
    """The connections on a path from input to output; `why_not` says why something is not known."""

    effective: Tensors | None = None  # kept, and on a path
    connected: bool | None = None  # True if an input reaches an output
    outputs: int | None = None  # width of a [batch, width] output
    dead_outputs: tuple[int, ...] = ()  # those that no input reaches
    why_not: str | None = None


class Follower:
    """Follow masks through one call of a model, which is in eval mode and not itself inside `with`.

    Of the call only shapes and integers matter. `learned` knows which of several outputs count.
    """

    def __init__(
        self,
        model: nn.Module,
        call: Call,
        batch_dim: int = 0,
        learned: LearnedOutputs | None = None,
    ) -> None:
        self._model, self._call, self._batch_dim = unwrap(model), call, batch_dim
        self._learned = learned or LearnedOutputs()
        self._devices = {name: p.device for name, p in self._model.named_parameters()}
        self._stand_ins: tuple[set[str], Tensors] = set(), {}
        self._stack = ExitStack()

    def __enter__(self) -> Follower:
        self._stack.enter_context(_as_probed(self._model))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def reached(self, masks: Masks, only: str | None = None) -> Reach | None:
        """Count the outputs that an input reaches; None if the model cannot be followed.

        A mask is a float only while its layer is at work, and nothing is kept for a backward pass,
        so that a large network is followed within a fraction of a training step. With `only`, all
        other arguments of the call are constants.
        """
        kept = {n: masks[n].to(device) for n, device in self._devices.items() if n in masks}
        try:
            with torch.no_grad():
                outputs = self._run(kept, one_sample(self._call, self._batch_dim), only)
        except Exception:  # a user's forward may do anything at all
            return None
        count = sum(int(depends(x).sum()) for x in outputs)
        return Reach(count, sum(x.numel() for x in outputs)) if outputs else None

    def paths(self, masks: Masks) -> Paths:
        """Find the connections on a path, by one forward and one backward pass."""
        leaves = {
            n: masks[n].to(device, DTYPE).requires_grad_()
            for n, device in self._devices.items()
            if n in masks
        }
        # One image of a batch is enough. With fewer dimensions the first one may be time, along
        # which recurrent weights have their paths: it is left whole.
        first, call = first_tensor(self._call), self._call
        if self._batch_dim > 0 or (first is not None and first.ndim >= 4):
            call = one_sample(call, self._batch_dim)
        paths = Paths()
        try:
            outputs = self._run(leaves, call)
            paths = self._forwards(masks, outputs)
            effective = _effective(leaves, outputs)
        except Exception as error:  # a user's forward may do anything at all
            return replace(paths, why_not=f"{type(error).__name__}: {first_line(error)}")
        return replace(paths, effective={n: x.cpu() & masks[n].cpu() for n, x in effective.items()})

    def cut_inputs(self, masks: Masks) -> list[str]:
        """Names of the arguments that the masks cut off from every output.

        A single one needs no name. Integers are not followed: they enter where they are used.
        """
        given = dict(_named(self._model, self._call))
        if sum(first_tensor(value) is not None for value in given.values()) < 2:
            return []

        def is_cut(name: str, masks: Masks) -> bool:
            reach = self.reached(masks, only=name)
            return reach is not None and not reach.reached

        numbers = [name for name, value in given.items() if floats_in(value)]
        return [n for n in numbers if is_cut(n, masks) and not is_cut(n, unpruned(masks))]

    def _forwards(self, masks: Masks, outputs: list[torch.Tensor]) -> Paths:
        """Tell what one forward pass shows; raise if that is no doing of the masks."""
        reached = [depends(x) for x in outputs]
        connected = any(bool(x.any()) for x in reached)
        if not connected:
            whole = self.reached(unpruned(masks))
            if whole is None or not whole.reached:
                raise ValueError("the output does not depend on the input")
        # Beside what depends on something, a forward may return constants.
        reached = [r for r, x in zip(reached, outputs, strict=True) if x.requires_grad or r.any()]
        if len(reached) != 1 or reached[0].ndim != 2:
            return Paths(connected=connected)
        dead = torch.nonzero(~reached[0].any(0)).flatten().tolist()
        return Paths(connected=connected, outputs=reached[0].shape[1], dead_outputs=tuple(dead))

    def _run(self, masks: Tensors, call: Call, only: str | None = None) -> list[torch.Tensor]:
        """Run the model on masks; its outputs, where they may be something."""
        probe = _Probe(masks)
        args, kwargs = self._with_inputs(probe, call, only)
        values = masks | self._beside(masks)
        with probe:
            output = functional_call(self._model, values, args, kwargs)
        outputs = self._learned.among(output)
        if any(bool(x.isnan().any()) for x in outputs):
            raise ValueError("a function of the model gives NaN")
        return outputs

    def _with_inputs(self, probe: _Probe, call: Call, only: str | None) -> Call:
        """The call with its numbers as inputs to follow: all, or those of one argument alone."""

        def entered(x: torch.Tensor) -> torch.Tensor:
            return probe.enter(torch.ones_like(x)) if x.is_floating_point() else x

        if only is None:
            return call.map(entered)
        values: list[Any] = []
        for name, value in _named(self._model, call):
            probe.level = FOLLOWED if name == only else 1.0
            values.append(mapped(value, entered))
        probe.level = 1.0  # what enters later, like embeddings, belongs to other arguments
        count = len(call.args)
        return Call(tuple(values[:count]), dict(zip(call.kwargs, values[count:], strict=True)))

    def _beside(self, masks: Tensors) -> Tensors:
        """Stand-ins of all other parameters and buffers: copies, as a forward may write into them.

        Parameters without a mask count as ones, buffers as constants. The vectors from which a
        spectral norm estimates a length count as zeros: a weight is divided by that length, but it
        is no way for a signal from one connection to another.
        """
        names, made = self._stand_ins
        if names != masks.keys():
            lengths = {
                id(x) for n in normed_weights(self._model).values() for x in n.estimates().values()
            }
            made = {
                name: torch.ones_like(parameter, dtype=DTYPE, requires_grad=False)
                for name, parameter in self._model.named_parameters()
                if name not in masks and parameter.is_floating_point()
            } | {
                name: torch.zeros_like(buffer) if id(buffer) in lengths else limited(buffer)
                for name, buffer in self._model.named_buffers()
            }
            self._stand_ins = set(masks), made
        return {name: x.clone() for name, x in made.items()}


def follow(model: nn.Module, masks: Masks, inputs: Any, batch_dim: int = 0) -> Paths:
    """Follow one set of masks, through a call of the model with `inputs`."""
    with Follower(model, arguments(unwrap(model), inputs), batch_dim) as follower:
        return follower.paths(masks)


def unpruned(masks: Masks) -> Tensors:
    """The masks that keep every connection."""
    return {name: torch.ones_like(mask) for name, mask in masks.items()}


def example_input(model: nn.Module, shape: tuple[int, ...], dtype: str = "float32") -> torch.Tensor:
    """One sample of zeros with the shape and type that a mask's provenance remembers."""
    if prod(shape) > LARGEST_SAMPLE:  # a file may claim any shape
        raise InputError(
            f"a sample of shape {tuple(shape)} is too large to try: pass inputs=... instead."
        )
    try:
        return torch.zeros(1, *shape, dtype=getattr(torch, dtype), device=device_of(model))
    except NotImplementedError as error:  # quantised numbers have no zeros without a scale
        raise InputError(f"a sample of {dtype} cannot be made: pass inputs=... instead.") from error


def one_sample(call: Call, batch_dim: int) -> Call:
    """The call with the first sample alone of every tensor that has the batch's size."""
    if any(isinstance(x, PackedSequence) for x in (*call.args, *call.kwargs.values())):
        return call  # its samples are interleaved
    first = next((x for x in tensors_in(call) if x.ndim > batch_dim), None)
    size = None if first is None else first.shape[batch_dim]

    def cut(x: torch.Tensor) -> torch.Tensor:
        same = x.ndim > batch_dim and x.shape[batch_dim] == size
        return x.narrow(batch_dim, 0, 1) if same else x

    return call.map(cut)


class _Probe(TorchFunctionMode):
    """Inside this block every PyTorch function that has a rule follows it."""

    def __init__(self, masks: Tensors) -> None:
        super().__init__()
        self.level = FOLLOWED  # of what enters: an input to follow, or 1 for a constant
        self._masks = {id(mask) for mask in masks.values()}  # bools stay bools until they are used
        self._grad = torch.is_grad_enabled()

    def enter(self, value: torch.Tensor) -> torch.Tensor:
        """`value` as a number that comes from the input, where it is not zero."""
        return rules.multiplied(value, torch.full((), self.level, device=value.device))

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is DTYPE_OF and id(args[0]) in self._masks:
            return DTYPE
        if func is F.linear and not self._grad and self._is_large_mask(*args[1:2]):
            with torch.no_grad():
                return self._linear(*args, **(kwargs or {}))
        args = self._floats(args)
        kwargs = {key: self._floats(value) for key, value in (kwargs or {}).items()}
        # A forward's own no_grad cuts no path, nor does detach.
        with torch.set_grad_enabled(self._grad):
            return self._follow(func, args, kwargs)

    def _follow(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        operation, plain = operation_of(func), IN_PLACE.get(func)
        rule = BY_KIND.get(operation.kind) or BY_NAME.get(operation.name)
        if rule is rules.cast:
            result = rule(func, *args, **kwargs)
            return self.enter(torch.ones_like(result)) if _is_data(args[0], result) else result
        if not _has_floats(args[:1] if plain else (*args, *kwargs.values())):
            # A constant (positions, a mask of attention's) must not be taken for an input.
            return mapped(func(*args, **kwargs), limited)
        if rule is None:
            return func(*args, **kwargs)
        if plain is not None:
            # The rule sees a copy: what autograd saved of it must not be written over.
            copied = args[0].clone()
            result = rule(plain, copied, *args[1:], **kwargs)
            return args[0] if result is copied else args[0].copy_(result)
        result = rule(func, *args, **kwargs)
        return self.enter(result) if rule is rules.embedding else result

    def _is_large_mask(self, weight: Any = None) -> bool:
        return id(weight) in self._masks and weight.numel() >= LARGE_MASK

    def _linear(self, x: Any, weight: torch.Tensor, bias: Any = None) -> torch.Tensor:
        """A large linear layer, row block by row block: its mask never becomes floats at once."""
        blocks = weight.split(max(1, LARGE_MASK // weight.shape[1]))
        x, bias = rules.numbers(self._floats(x)), self._floats(bias)
        result = torch.cat([F.linear(x, block.to(DTYPE)) for block in blocks], -1)
        return rules.something(result if bias is None else result + rules.numbers(bias))

    def _floats(self, value: Any) -> Any:
        if type(value) in (tuple, list):
            return type(value)(map(self._floats, value))
        return value.to(DTYPE) if id(value) in self._masks else value


def _is_data(given: torch.Tensor, result: Any) -> bool:
    """True if a cast makes numbers of integers that are data: tables, not a size or an index."""
    if not isinstance(result, torch.Tensor) or not result.is_floating_point():
        return False
    return not given.is_floating_point() and given.dtype != torch.bool and given.ndim > 1


def _has_floats(values: tuple[Any, ...]) -> bool:
    """True if there is a floating-point tensor among the arguments of a function.

    Shapes and indices are computed with integers, and must come out as they are.
    """
    return any(
        value.is_floating_point()
        if isinstance(value, torch.Tensor)
        else isinstance(value, (list, tuple)) and _has_floats(tuple(value))
        for value in values
    )


def _effective(leaves: Tensors, outputs: list[torch.Tensor]) -> Tensors:
    """True where a mask's gradient says that a path leads through the connection."""
    sums = [x.sum() for x in outputs if x.requires_grad]
    if not sums or not leaves:
        return {name: torch.zeros_like(leaf, dtype=torch.bool) for name, leaf in leaves.items()}
    gradients = torch.autograd.grad(
        torch.stack(sums).sum(), list(leaves.values()), materialize_grads=True
    )
    effective = {}
    for name, gradient in zip(leaves, gradients, strict=True):
        rules.require_finite(gradient)
        # A path may start at a bias. By name: a scale has one dimension too, but none starts at it.
        starts = "bias" in name.rpartition(".")[2]
        effective[name] = gradient != 0 if starts else gradient >= HUGE
    return effective


def _named(model: nn.Module, call: Call) -> Iterator[tuple[str, Any]]:
    """The arguments of a call with the names that the model's forward gives them, or positions."""
    names: list[str] = []
    with suppress(TypeError, ValueError):  # a forward that is not Python's may not say
        known = inspect.signature(model.forward).parameters.values()
        names = [x.name for x in known if x.kind in POSITIONAL]
    names = names[: len(call.args)] + [str(i) for i in range(len(names), len(call.args))]
    yield from zip(names, call.args, strict=True)
    yield from call.kwargs.items()


@contextmanager
def _as_probed(model: nn.Module) -> Iterator[None]:
    """Eval mode with gradients and without autocast; everything is restored on the way out."""
    # Recurrent layers keep a second list of their weights, which functional_call overwrites.
    recurrent: list[Any] = [m for m in model.modules() if isinstance(m, nn.RNNBase)]
    flat = [(m, m._flat_weights, m._flat_weight_refs) for m in recurrent]
    with (
        undisturbed(model),
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast(device_of(model).type, enabled=False),
    ):
        model.eval()
        for module in model.modules():
            for key, value in vars(module).items():
                if isinstance(value, torch.Tensor):  # a constant that is no buffer
                    vars(module)[key] = limited(value.detach())
        try:
            yield
        finally:
            for module, weights, refs in flat:
                module._flat_weights, module._flat_weight_refs = weights, refs
