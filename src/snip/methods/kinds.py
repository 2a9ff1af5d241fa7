"""The two kinds of methods, and what the paper's Table 1 says of each as data.

A method at initialisation is a function from model and batches to scores, perhaps in rounds. A
method during training goes through the one training loop. `snip.methods.METHODS` has both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import nn

from snip.distributed.models import REPLICATED, SHARDED
from snip.masks import Masks
from snip.methods.course import Course
from snip.methods.layers import ANY, Takes
from snip.methods.schedules import Rounds, one_shot
from snip.network.parameters import Predicate
from snip.scoring.batches import LossFn
from snip.scoring.gradients import Scores
from snip.scoring.settings import Scoring
from snip.training.config import TrainConfig
from snip.training.phases import part

# What a score depends on. Only what depends on the data shows how the model is called, and only
# what depends on the weights asks for parts that start at zero to be woken.
NOTHING, WEIGHTS, DATA = "nothing", "weights", "data"
ANYHOW = (REPLICATED, SHARDED)  # for methods that are right however processes share a model


class Score(Protocol):
    """One score per connection by parameter name, higher = keep; the model is left as found.

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
    """One row of the paper's Table 1: what a method asks of whoever uses it."""

    criterion: str
    pretraining: bool = False
    prunings: str = "1"  # how often it prunes: a number, "many", or "soft" as the paper has it
    hyperparameters: bool = False  # others than the sparsity
    objective: bool = False  # whether the loss gets a term of its own
    architecture: bool = False  # whether layers need settings of their own


@dataclass(frozen=True)
class AtInitialisation:
    """A method that prunes before training.

    `rounds(sparsity)` are the sparsities of its rounds, the last of them `sparsity`: each round
    scores the network that the round before has left, on all batches. With `returns`, connections
    that a round has removed may come back in a later one; `score` then takes a keyword `dense`
    too, the weights by name as they were before any round. `scope` is who competes with whom, for
    a method that decides it. `reads` is what the scores depend on: DATA, WEIGHTS or NOTHING.
    `called`: whether it must know how the model is called, though it reads no data.
    `shared` are the ways in which several processes may share the model: those in which the scores
    are the same as in one process, as sums over the data of all of them are.
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

    `prune(course)` is given a trained network, trains it in phases, and returns the masks; weights
    that are not to stay as they are it has changed by then. One more training under these masks
    follows: `share` as long as the first training, at its learning rate times `lr_scale`.
    """

    prune: Callable[[Course], Masks]
    needs: Needs
    biases: bool = False  # whether biases compete with the weights; else all of them stay
    layers: Takes = ANY
    norms: bool = False  # whether it keeps of each weight under a norm what the norm divides by
    share: float = 0.5
    lr_scale: float = 0.1

    def last_training(self, config: TrainConfig) -> TrainConfig:
        """The training under the final masks, after a first training by `config`."""
        return part(config, self.share, lr_scale=self.lr_scale)


Method = AtInitialisation | DuringTraining
