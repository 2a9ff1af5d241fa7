"""How many outputs an input reaches, found in one forward pass, for masks that were just chosen.

`connectivity` also follows paths backwards, to tell of every connection whether it lies on one. To
tell which outputs are reached a forward pass is enough, if numbers say where they come from: 0 is
"always zero", a small number "something", and a huge one "depends on an input" (see `values`).
Nothing is kept for a backward pass, and a mask is a float only while its layer is at work, so that
a large network is followed within a fraction of a training step.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from snip.distributed.wrappers import unwrap
from snip.network.calls import Call, first_tensor, mapped
from snip.paths.connectivity import entered, one_sample, others, probing
from snip.paths.learned import LearnedOutputs, floats_in
from snip.paths.probe import PathProbe
from snip.paths.values import DTYPE, FOLLOWED, depends, limited, something

DTYPE_OF = torch.Tensor.dtype.__get__  # type: ignore[attr-defined]
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
ROWS = 1 << 22  # elements of a mask that are floats at a time in a linear layer
LARGE = 1 << 20  # elements from which on bools are compared instead
WORDS = 1 << 19  # eight bools each, of a mask that a thread looks at at a time


@dataclass(frozen=True)
class Reach:
    """Of the numbers in one sample's output: how many an input reaches, and how many there are."""

    reached: int
    outputs: int


Follow = Callable[..., Reach | None]  # of masks; `only`: of this argument of the call alone


@contextmanager
def following(
    model: nn.Module, call: Call, batch_dim: int = 0, learned: LearnedOutputs | None = None
) -> Iterator[Follow]:
    """Inside the block: a function that says of masks how much of the output any input reaches.

    It says None if the model cannot be followed. `call` is what the model was called with, of which
    one sample is enough; `learned` knows which of several outputs count.
    """
    model = unwrap(model)
    sample = one_sample(call, batch_dim)
    with probing(model), torch.no_grad():
        yield partial(_reach, model, sample, learned or LearnedOutputs(), _Constants(model))


def reach(
    model: nn.Module, masks: Mapping[str, torch.Tensor], call: Call, batch_dim: int = 0
) -> Reach | None:
    """`following` for one set of masks."""
    with following(model, call, batch_dim) as follow:
        return follow(masks)


def unpruned(masks: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The masks that keep every connection."""
    return {name: torch.ones_like(mask) for name, mask in masks.items()}


def cut_inputs(
    follow: Follow, model: nn.Module, call: Call, masks: Mapping[str, torch.Tensor]
) -> list[str]:
    """The arguments of which nothing reaches an output, though it would without masks.

    Of a single one the outputs tell. Integers are not asked for: they enter where they are used.
    """
    given = dict(_named(unwrap(model), call))
    if sum(first_tensor(value) is not None for value in given.values()) < 2:
        return []
    numbers = [name for name, value in given.items() if floats_in(value)]
    return [
        name
        for name in numbers
        if _is_cut(follow(masks, only=name)) and not _is_cut(follow(unpruned(masks), only=name))
    ]


def _is_cut(found: Reach | None) -> bool:
    return found is not None and not found.reached


def _named(model: nn.Module, call: Call) -> Iterator[tuple[str, Any]]:
    """The arguments of a call with the names that the model's forward gives them, or positions."""
    args, kwargs = call
    names: list[str] = []
    with suppress(TypeError, ValueError):  # a forward that is not Python's may not say
        known = inspect.signature(model.forward).parameters.values()
        names = [x.name for x in known if x.kind in POSITIONAL]
    names = names[: len(args)] + [str(i) for i in range(len(names), len(args))]
    yield from zip(names, args, strict=True)
    yield from kwargs.items()


def _reach(
    model: nn.Module,
    sample: Call,
    learned: LearnedOutputs,
    constants: _Constants,
    masks: Mapping[str, torch.Tensor],
    only: str | None = None,
) -> Reach | None:
    kept = {n: masks[n].to(device) for n, device in constants.devices.items() if n in masks}
    probe = _ForwardProbe(kept)
    try:
        args, kwargs = _entered(model, sample, probe, only)
        values = kept | constants.beside(kept)
        with probe:
            output = functional_call(model, values, args, kwargs)
    except Exception:  # a user's forward may do anything at all
        return None
    found = learned.among(output)
    if not found or any(bool(x.isnan().any()) for x in found):
        return None
    return Reach(sum(int(depends(x).sum()) for x in found), sum(x.numel() for x in found))


def _entered(model: nn.Module, sample: Call, probe: _ForwardProbe, only: str | None) -> Call:
    """The call with its numbers as inputs to follow: all, or those of one argument alone."""
    if only is None:
        found: Call = entered(sample, probe)
        return found
    values: list[Any] = []
    for name, value in _named(model, sample):
        probe.follows = name == only
        values.append(entered(value, probe))
    probe.follows = False  # what enters later, like embeddings, is of other arguments
    count = len(sample[0])
    return Call(tuple(values[:count]), dict(zip(sample[1], values[count:], strict=True)))


class _Constants:
    """What stands for the parameters without a mask and the buffers, made once for many masks."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.devices = {name: parameter.device for name, parameter in model.named_parameters()}
        self._names: frozenset[str] | None = None
        self._made: dict[str, torch.Tensor] = {}

    def beside(self, kept: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The constants beside these masks: copies, because a forward may write into a buffer."""
        if self._names != kept.keys():
            made = others(self.model, kept)
            self._names = frozenset(kept)
            self._made = {name: limited(x) for name, x in made.items()}
        return {name: x.clone() for name, x in self._made.items()}


class _ForwardProbe(PathProbe):
    """A probe for which inputs are huge numbers, and masks stay bool until they are used."""

    def __init__(self, masks: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self.follows = True  # whether what enters is an input to follow, or a constant
        self._masks = {id(mask): mask for mask in masks.values()}

    def enter(self, value: torch.Tensor) -> torch.Tensor:
        """`value` as a number that depends on an input, where it is not zero."""
        return (value != 0).to(DTYPE) * (FOLLOWED if self.follows else 1.0)

    def made(self, value: Any) -> Any:
        """A constant (positions, a mask of attention's) must not be taken for an input."""
        return mapped(value, limited)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is DTYPE_OF and id(args[0]) in self._masks:
            return DTYPE
        if func is F.linear and len(args) > 1 and id(args[1]) in self._masks:
            return something(_linear(args[0], args[1], *map(self._floats, args[2:])))
        args = self._floats(args)
        kwargs = {key: self._floats(value) for key, value in (kwargs or {}).items()}
        return super().__torch_function__(func, types, args, kwargs)

    def _floats(self, value: Any) -> Any:
        if type(value) in (tuple, list):
            return type(value)(map(self._floats, value))
        return value.to(DTYPE) if id(value) in self._masks else value


def _linear(x: torch.Tensor, mask: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """F.linear a few rows of the mask at a time: a large mask is not made a float as a whole."""
    one = x.numel() == mask.shape[1] and mask.numel() >= LARGE
    if one and mask.is_contiguous() and mask.device.type == "cpu":
        result = _of_one(x, mask).view(*x.shape[:-1], len(mask))
        return result if bias is None else result + bias
    step = max(1, ROWS // mask.shape[1])
    rows = torch.empty(min(step, len(mask)), mask.shape[1], dtype=DTYPE, device=mask.device)
    parts = [F.linear(x, rows[: len(part)].copy_(part)) for part in mask.split(step)]
    result = torch.cat(parts, -1)
    return result if bias is None else result + bias


def _of_one(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """F.linear of one sample: what meets something of `x` in each row of the mask, and what kind.

    Bools are compared where they are, eight at a time if the rows divide so: in a third of the
    time in which they become floats and are multiplied.
    """
    followed, some = depends(x), x != 0
    reached = _meets(mask, followed)
    # Where nothing but the input is something, which is usual, one look is enough.
    met = reached if torch.equal(followed, some) else _meets(mask, some)
    return met.to(DTYPE).masked_fill_(reached, FOLLOWED)


def _meets(mask: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Whether a row of `mask` and `x` are both True somewhere."""
    one, rows = x.reshape(-1).numpy(), mask.numpy()
    kind = np.uint64 if rows.shape[1] % 8 == 0 else np.bool_
    one, rows = one.view(kind), rows.view(kind)
    step = max(1, WORDS // max(1, rows.shape[1]))
    found = np.empty(len(rows), dtype=np.bool_)

    def meet(start: int) -> None:
        part = slice(start, start + step)
        np.not_equal(np.bitwise_or.reduce(rows[part] & one, axis=1), 0, out=found[part])

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        list(pool.map(meet, range(0, len(rows), step)))
    return torch.from_numpy(found)
