"""A straight network as one node of autograd: one native call forward, and one backward."""

from __future__ import annotations

from typing import Any

import torch

from snip.common.errors import InputError
from snip.engine.fused.program import Program
from snip.engine.once import once_differentiable


def differentiable(program: Program, x: torch.Tensor) -> torch.Tensor:
    """The network's output for contiguous x, with gradients for its trained parameters."""
    # Past `Function.apply`, which looks once more for torch.func's tensors: `program` reads none.
    output: torch.Tensor = _apply(x, program, *program.parameters)
    return output


class _Network(torch.autograd.Function):
    """Its parameters are inputs, so that autograd sees a plain operation on them."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, program: Program, *parameters: torch.Tensor
    ) -> torch.Tensor:
        y, saved = program.native.training_forward(x, program.memory)
        ctx.program = program
        # Each forward saves memory of its own, so that any number of them may wait for a backward
        # pass. The parameters are saved for autograd to notice if they are changed until then.
        ctx.save_for_backward(saved, *parameters)
        return y

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[Any, ...]:
        return (_refusing if torch.is_grad_enabled() else _gradients)(ctx, dy)


def _gradients(ctx: Any, dy: torch.Tensor) -> tuple[Any, ...]:
    program, (saved, *parameters) = ctx.program, ctx.saved_tensors
    if not program.reads(parameters):
        raise InputError(
            "a parameter got other memory (p.data = ..., .to(...)) between the forward and the "
            "backward pass: call the network again, then backward."
        )
    gradients = program.native.backward(saved, dy.resolve_neg().contiguous())
    return None, None, *program.parameter_gradients(gradients)


# With `create_graph` only: torch's refusal of second derivatives takes time in every step.
_refusing: Any = once_differentiable(_gradients)
_apply: Any = super(torch.autograd.Function, _Network).apply
