"""A straight network as one node of autograd: one native call forward, and one backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from snip.common.errors import InputError
from snip.engine.kernels.extension import extension
from snip.engine.kernels.library import check_status
from snip.engine.kernels.memory import Reused, places_of
from snip.engine.kernels.straight import NativeNetwork
from snip.engine.once import once_differentiable


class Body:
    """What a graph keeps of a network until its backward pass.

    It holds no module and no parameter: a network that keeps its own outputs would be a cycle,
    which Python does not see through torch's graph.
    """

    def __init__(
        self,
        native: NativeNetwork,
        parameters: Sequence[nn.Parameter],
        pieces: Sequence[tuple[int, int]],
        memory: Reused,
        alive: list[Any],
    ) -> None:
        self.native, self._memory, self._alive = native, memory, alive
        self._places = places_of(parameters)
        self._pieces = pieces  # of each parameter in the gradient: its offset (-1: none) and length
        self._node = self._made_node()

    def _made_node(self) -> Any:
        """The same in C++, which forward calls if it is there."""
        made = extension()
        if made is None:
            return None
        of_native = self.native.node_arguments()
        return made.Network(*of_native, self._pieces, self._places, self._memory.room())

    def forward(self, x: torch.Tensor, parameters: list[nn.Parameter]) -> torch.Tensor:
        """The network's output for contiguous x, with gradients for its trained parameters."""
        if self._node is not None:
            made: torch.Tensor | None = self._node.forward(x, parameters, self)
            if made is not None:
                return made
        # Past `Function.apply`, which looks once more for torch.func's tensors: nobody reads them.
        output: torch.Tensor = _apply(x, self, *parameters)
        return output

    def training_forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The output, and what `backward` reads again."""
        return self.native.training_forward(x, self._memory)

    def reads(self, parameters: Sequence[torch.Tensor]) -> bool:
        """Whether the addresses it was made with are those of these parameters."""
        return bool(self._places.are(parameters))

    def parameter_gradients(self, gradients: torch.Tensor) -> list[torch.Tensor | None]:
        """Each parameter's part of the gradient; None where it is not trained."""
        return [
            None if offset < 0 else gradients.narrow(0, offset, length)
            for offset, length in self._pieces
        ]

    def backward(self, saved: list[torch.Tensor], dy: torch.Tensor) -> tuple[Any, ...]:
        """The parameters' gradients, for the node in C++ wherever anything is unusual."""
        return _backward(_Context(self, saved), dy)[2:]

    raise_status = staticmethod(check_status)


class _Context:
    """What the backward pass reads of torch's own context."""

    needs_input_grad = ()
    __slots__ = ("__dict__", "saved_tensors")

    def __init__(self, body: Body, saved: list[torch.Tensor]) -> None:
        self.body, self.saved_tensors = body, saved


class _Network(torch.autograd.Function):
    """Its parameters are inputs, so that autograd sees a plain operation on them."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, body: Body, *parameters: torch.Tensor) -> torch.Tensor:
        y, saved = body.training_forward(x)
        ctx.body = body
        # Each forward saves memory of its own, so that any number of them may wait for a backward
        # pass. The parameters are saved for autograd to notice if they are changed until then.
        ctx.save_for_backward(saved, *parameters)
        return y

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[Any, ...]:
        return _backward(ctx, dy)


def _backward(ctx: Any, dy: torch.Tensor) -> tuple[Any, ...]:
    return (_refusing if torch.is_grad_enabled() else _gradients)(ctx, dy)


def _gradients(ctx: Any, dy: torch.Tensor) -> tuple[Any, ...]:
    body, (saved, *parameters) = ctx.body, ctx.saved_tensors
    if not body.reads(parameters):
        raise InputError(
            "a parameter got other memory (p.data = ..., .to(...)) between the forward and the "
            "backward pass: call the network again, then backward."
        )
    gradients = body.native.backward(saved, dy.resolve_neg().contiguous())
    return None, None, *body.parameter_gradients(gradients)


# With `create_graph` only: torch's refusal of second derivatives takes time in every step.
_refusing: Any = once_differentiable(_gradients)
_apply: Any = super(torch.autograd.Function, _Network).apply
