"""Networks with a few fused steps behind them, and ways to change a tensor under the step."""

import torch
from step_parts import mlp, ordinary, pair_of_networks

import snip


def trained(steps: int = 2):
    """Two equal networks with a few steps behind them, their optimisers, a step and a batch."""
    fast, other, batch = pair_of_networks(mlp)
    mine, theirs = (torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (fast, other))
    step = snip.training_step(fast, mine)
    for _ in range(steps):
        step(*batch)
        ordinary(other, theirs, *batch)
    return fast, other, mine, theirs, step, batch


def strided(buffer: torch.Tensor) -> torch.Tensor:
    return torch.stack((buffer, buffer), 1)[:, 0]


def in_place(buffer: torch.Tensor, change) -> torch.Tensor:
    """Let the same tensor look at its memory in another way."""
    buffer.data = change(buffer.data)
    return buffer


AT_THE_SAME_ADDRESS = [
    lambda t: t[:-1],
    lambda t: t.view(torch.int32),
    lambda t: t[None],
    lambda t: t[:1].expand(len(t)),
    lambda t: torch.as_strided(t, (len(t) // 2,), (2,)),
    torch._neg_view,
]
