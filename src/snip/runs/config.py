"""One run as a frozen value: what is pruned, how, and how it is trained; it names its folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from snip.common.checks import check_fields, checked_number, checked_whole
from snip.common.errors import InputError, KindError, nearest
from snip.engine.choice import ENGINES
from snip.methods import METHODS, scope_of, training_method
from snip.methods.controls import CONTROLS, NONE, REDRAW
from snip.models import IMAGES, MODELS
from snip.models.initializers import INITIALIZERS
from snip.models.resolve import OWN
from snip.network.network import BIASES, COMPETE
from snip.network.untouched import BATCH_NORM_MODES
from snip.runs import naming
from snip.scoring.settings import REDUCTIONS, Scoring
from snip.selection.budgets import SCOPES, checked_sparsity
from snip.selection.granularity import Element, checked_granularity
from snip.selection.request import AUTO, BUDGETS, Request
from snip.training.config import TrainConfig
from snip.training.schedule import first_training, paper_schedule

# The paper's text trains the scored weights; the authors' code draws them again.
PROTOCOLS = ("train-scored", REDRAW)
TRUE, SHUFFLED = LABELS = ("true", "shuffled")
# A method that prunes a trained network obeys none of these.
UNUSED = (
    "protocol", "score_batches", "score_batch_size", "reduction", "decay", "granularity", "scope",
    "floor", "budget", "biases", "batch_norm", "control",
)  # fmt: skip


@dataclass(frozen=True)
class RunConfig:
    """A whole run. Empty names and zeros are filled in when the value is made."""

    model: str  # a name in snip.models, or "package.module:function"
    sparsity: float  # 0 trains the dense reference
    dataset: str = ""  # by default the model's first
    method: str = "snip"
    granularity: str = "element"
    protocol: str = "train-scored"
    initializer: str = ""  # of the scored weights; by default "vs", for a user's network "own"
    train_initializer: str = ""  # of the trained weights; by default the same
    score_batch_size: int = 0  # by default the training's
    score_batches: int = 1
    reduction: str = "abs_of_sum"
    decay: float = 0.9  # used by reduction "ema"
    scope: str = "global"
    floor: float | str = ""  # by default the authors' 0, for a user's network "auto"
    budget: str = "connections"
    biases: str = COMPETE  # or "keep": all stay, and the sparsity is of the weights
    batch_norm: str = ""  # by default the authors' "eval", for a user's network "train"
    control: str = NONE  # what stands in for the method's masks; "redraw" is the protocol's
    labels: str = TRUE  # of the training images; scores always come from the true ones
    seed: int = 0
    engine: str = "auto"  # the dense network, which has nothing to leave out, is always "dense"
    train: TrainConfig | None = None  # by default the paper's schedule for the data set

    def __post_init__(self) -> None:
        """Fill in what was left open and refuse values that could only fail later."""
        if self.control == REDRAW:  # one run has one name
            self._set("protocol", REDRAW)
            self._set("control", NONE)
        self._fill("dataset", _default_dataset(self.model))
        self._fill("initializer", OWN if self.is_user_model else "vs")
        if self.initializer == OWN and not self.is_user_model:
            self._set("initializer", "vs")  # which is what the paper's networks draw
        self._fill("train_initializer", self.initializer)
        self._fill("batch_norm", self._usual_scoring().batch_norm)
        if self.floor == "":  # 0 is a floor that may be asked for
            self._set("floor", AUTO if self.is_user_model else 0.0)
        self._fill("train", self.usual_training)
        if not isinstance(self.train, TrainConfig):
            raise KindError(f"train is a {type(self.train).__name__}: give a TrainConfig.")
        self._fill("score_batch_size", self.training.batch_size)
        for name, known in self._choices().items():
            if getattr(self, name) not in known:
                raise nearest(name.replace("_", " "), getattr(self, name), known)
        self._check_numbers()
        self._check_together()
        if self.sparsity == 0:
            self._set("engine", "dense")

    @property
    def is_user_model(self) -> bool:
        """Whether the model is a function of the user's."""
        return ":" in self.model

    @property
    def training(self) -> TrainConfig:
        """The training's configuration, with the run's seed."""
        train = self.train or self.usual_training
        return dataclasses.replace(train, seed=self.seed)

    @property
    def trained_first(self) -> RunConfig:
        """The run that trains the dense network, for a method that prunes a trained one.

        Runs of the same network, data, schedule and seed share it.
        """
        same = ("model", "dataset", "initializer", "labels", "seed", "train")
        return RunConfig(sparsity=0, **{name: getattr(self, name) for name in same})

    @property
    def last_training(self) -> TrainConfig:
        """The training in the run's own folder: the whole, or what follows a method that trains."""
        method = training_method(self.method) if self.sparsity else None
        return self.training if method is None else method[1].last_training(self.training)

    @property
    def scoring(self) -> Scoring:
        """How the run scores: a network of the paper the authors' way, a user's own by default."""
        return dataclasses.replace(
            self._usual_scoring(),
            reduction=self.reduction,
            decay=self.decay,
            batch_norm=self.batch_norm,
        )

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON writes them; the training's seed is the run's."""
        train = self.training.to_dict()
        del train["seed"]
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)} | {"train": train}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunConfig:
        """The inverse of `to_dict`; a field that is missing has its default."""
        check_fields(cls, data, "run option")
        train = data.get("train")
        # A file without an engine is older than the choice between them.
        made = None if train is None else TrainConfig.from_dict(train)
        return cls(**{"engine": "dense", **data, "train": made})

    def identity(self) -> dict[str, Any]:
        """What tells this run from others: the fields that are not at their default."""
        return naming.identity(self)

    @property
    def folder_name(self) -> str:
        """A readable name that differs for every configuration."""
        return naming.folder_name(self)

    @property
    def usual_training(self) -> TrainConfig:
        """The paper's schedule, or the first training of a method that prunes a trained network."""
        during = training_method(self.method) is not None and self.sparsity
        return first_training(self.dataset) if during else paper_schedule(self.dataset)

    def _usual_scoring(self) -> Scoring:
        return Scoring() if self.is_user_model else Scoring.authors()

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _fill(self, name: str, value: Any) -> None:
        if not getattr(self, name):
            self._set(name, value)

    def _choices(self) -> dict[str, tuple[str, ...]]:
        initializers = (*INITIALIZERS, OWN) if self.is_user_model else tuple(INITIALIZERS)
        return {
            "method": tuple(METHODS),
            "protocol": PROTOCOLS,
            "control": (NONE, *CONTROLS),
            "labels": LABELS,
            "initializer": initializers,
            "train_initializer": initializers,
            "reduction": REDUCTIONS,
            "scope": SCOPES,
            "budget": BUDGETS,
            "biases": BIASES,
            "batch_norm": BATCH_NORM_MODES,
            "engine": ENGINES,
        }

    def _check_numbers(self) -> None:
        self._set("sparsity", checked_sparsity(self.sparsity))
        granularity = checked_granularity(self.granularity)
        Request(
            sparsity=self.sparsity,
            scope=scope_of(self.method, METHODS[self.method], self.scope),
            floor=self.floor,
            # The dense reference is the same for every granularity.
            granularity=granularity if self.sparsity else Element(),
            budget=self.budget,
            biases=self.biases,
        )
        self._set("granularity", str(granularity))
        self._set("floor", AUTO if self.floor == AUTO else float(self.floor))
        self._set("decay", checked_number("decay", self.decay, below=1))
        checked_whole("score_batch_size", self.score_batch_size, least=1)
        checked_whole("score_batches", self.score_batches, least=1)
        checked_whole("seed", self.seed, least=0)

    def _check_together(self) -> None:
        if self.train is not None and self.train.seed not in (0, self.seed):
            raise InputError(
                f"the training has seed {self.train.seed} and the run {self.seed}: "
                "a run has one seed, give it to the run alone."
            )
        self._set("train", dataclasses.replace(self.training, seed=0))
        if self.sparsity and training_method(self.method) is not None:
            self._require_unused()
        if self.protocol == "train-scored" and self.train_initializer != self.initializer:
            raise InputError(
                f"initializer {self.initializer!r} is scored and {self.train_initializer!r} is to "
                "be trained, but protocol 'train-scored' trains the scored weights: use 'redraw'."
            )

    def _require_unused(self) -> None:
        """Refuse options that a method which trains would not obey."""
        usual: dict[str, tuple[Any, ...]]
        usual = {field.name: (field.default,) for field in dataclasses.fields(self)}
        usual |= {"floor": (0.0, AUTO), "batch_norm": (self._usual_scoring().batch_norm,)}
        usual |= {"score_batch_size": (self.training.batch_size,)}
        for name in UNUSED:
            if getattr(self, name) not in usual[name]:
                raise InputError(
                    f"{name} is {getattr(self, name)!r}, but method {self.method!r} "
                    "prunes a trained network by a rule of its own: leave this option out."
                )


def _default_dataset(model: str) -> str:
    if not isinstance(model, str) or not model:
        raise InputError(f"model is {model!r}: give a name, or 'package.module:function'.")
    if ":" in model:
        return next(iter(IMAGES))
    if model not in MODELS:
        raise nearest("model", model, MODELS)
    return MODELS[model].datasets[0]
