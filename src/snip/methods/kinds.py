"""The two kinds of methods, the rounds they prune in, and the paper's Table 1 as data.

A method at initialisation is a function from model and batches to scores, perhaps in rounds. A
method during training goes through the one training loop. `snip.methods.METHODS` has both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from torch import nn

from snip.distributed.wrapped import REPLICATED, SHARDED
from snip.masks import Masks
from snip.network.parameters import Predicate
from snip.scoring.batches import LossFn
from snip.scoring.gradients import Scores
from snip.scoring.settings import Scoring
from snip.training.config import TrainConfig
from snip.training.phases import part

if TYPE_CHECKING:  # which needs the kinds
    from snip.methods.course import Course

# What a score depends on. Only what depends on the data shows how the model is called, and only
# what depends on the weights asks for parts that start at zero to be woken.
NOTHING, WEIGHTS, DATA = "nothing", "weights", "data"
ANYHOW = (REPLICATED, SHARDED)  # for methods that are right however processes share a model

Rounds = Callable[[float], tuple[float, ...]]  # from the sparsity to the sparsity after each round


def one_shot(sparsity: float) -> tuple[float, ...]:
    """Remove everything in one round, which is what SNIP is named for."""
    return (sparsity,)


def exponential(count: int) -> Rounds:
    """Keep in each round the same fraction of what the one before has kept."""

    def rounds(sparsity: float) -> tuple[float, ...]:
        kept = 1 - sparsity
        return (*(1 - kept ** (t / count) for t in range(1, count)), sparsity)

    return rounds


def halving(count: int) -> Rounds:
    """Begin at 0.5, go half of the remaining way `count` times, and then all of it."""

    def rounds(sparsity: float) -> tuple[float, ...]:
        steps = (sparsity - (sparsity - 0.5) * 0.5**t for t in range(count + 1))
        # A sparsity below the first step is reached in the first round.
        return (*(min(step, sparsity) for step in steps), sparsity)

    return rounds


class Score(Protocol):
    """Give a score per connection by parameter name, higher = keep; leave the model as found.

    `params` picks the parameters that count, as in `snip.prune`.
    """

    def __call__(
        self,
        model: nn.Module,
        batches: Any,
        loss_fn: LossFn | None = None,
        *,
        params: Predicate | None = None,
        scoring: Scoring = Scoring(),
    ) -> Scores: ...


@dataclass(frozen=True)
class Needs:
    """One row of the paper's Table 1: the demands of a method on its user."""

    criterion: str
    pretraining: bool = False
    prunings: str = "1"  # how often it prunes: a number, "many", or "soft" as the paper has it
    hyperparameters: bool = False  # others than the sparsity
    objective: bool = False  # the loss gets a term of its own
    architecture: bool = False  # layers need settings of their own


@dataclass(frozen=True)
class AtInitialisation:
    """A method that prunes before training.

    `rounds(sparsity)` are the sparsities of its rounds, the last of them `sparsity`: each round
    scores the network that the round before has left, on all batches. With `returns`, connections
    that a round has removed may come back in a later one; `score` then takes a keyword `dense`
    too, the weights by name as they were before any round. `scope` says which connections compete
    with each other, for a method that decides it. `reads` is what the scores depend on: DATA,
    WEIGHTS or NOTHING. With `called`, it must know how the model is called, though it reads no
    data. `shared` lists the ways in which several processes may share the model: those in which
    the scores are the same as in one process, as sums over the data of all of them are.
    """

    score: Callable[..., Scores]  # a Score
    needs: Needs
    rounds: Rounds = one_shot
    returns: bool = False
    scope: str | None = None
    reads: str = DATA
    called: bool = False
    shared: tuple[str, ...] = ()


@dataclass(frozen=True)
class DuringTraining:
    """A method that prunes while or after the network is trained, in the one training loop.

    `prune(course)` is given a trained network, trains it in phases, and returns the masks; by then
    it has changed the weights that are not to stay as they are. One more training under these masks
    follows: `share` as long as the first training, at its learning rate times `lr_scale`.
    """

    prune: Callable[[Course], Masks]
    needs: Needs
    biases: bool = False  # biases compete with the weights; else all of them stay
    layers: tuple[type[nn.Module], ...] = ()  # the only kinds that it takes; empty: any
    norms: bool = False  # it keeps of each weight under a norm what the norm divides by
    share: float = 0.5
    lr_scale: float = 0.1

    def last_training(self, config: TrainConfig) -> TrainConfig:
        """Return the training under the final masks, after a first training by `config`."""
        return part(config, self.share, lr_scale=self.lr_scale)


Method = AtInitialisation | DuringTraining
