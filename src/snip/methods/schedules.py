"""How sparse the network is after each round of a method that prunes in several."""

from __future__ import annotations

from collections.abc import Callable

Rounds = Callable[[float], tuple[float, ...]]  # from the sparsity to those of the rounds


def one_shot(sparsity: float) -> tuple[float, ...]:
    """All at once, which is what SNIP is named for."""
    return (sparsity,)


def exponential(count: int) -> Rounds:
    """Each round keeps the same fraction of what the one before has kept."""

    def rounds(sparsity: float) -> tuple[float, ...]:
        kept = 1 - sparsity
        return (*(1 - kept ** (t / count) for t in range(1, count)), sparsity)

    return rounds


def halving(count: int) -> Rounds:
    """From 0.5 on, each round goes half of the way that is left; one more goes all of it."""

    def rounds(sparsity: float) -> tuple[float, ...]:
        steps = (sparsity - (sparsity - 0.5) * 0.5**t for t in range(count + 1))
        # A sparsity below the first step is reached in the first round.
        return (*(min(step, sparsity) for step in steps), sparsity)

    return rounds
