"""Which outputs of a model the loss learns from: those at which its gradient arrives.

A model may also return an attention map or hidden states, of which a loss makes nothing: that no
input reaches those is no harm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from snip.network.calls import tensors_in

Edge = tuple[Any, int]  # how autograd names a tensor: the node that made it, and which of its own


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
        """What several have noted of the same model: an output that any of them learns from."""
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
