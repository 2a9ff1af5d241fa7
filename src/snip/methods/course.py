"""Prune a trained network by a method that trains: what it is given, and what is checked before."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import nn

from snip.common.errors import InputError, KindError
from snip.data.dataset import Dataset
from snip.distributed.wrapped import unwrap
from snip.masks import Masks, held_masks, release, versions
from snip.methods.kinds import DuringTraining, Rounds
from snip.methods.layer_matrices import require_plain
from snip.models.networks import LeNet5Caffe, LeNet300100
from snip.network.calls import Call, device_of
from snip.network.layout import is_weight
from snip.network.network import Network
from snip.network.norms import layer_name, normed_weights
from snip.network.parameters import Predicate
from snip.network.reader import look
from snip.scoring.batches import is_pair_of_tensors, one_sample
from snip.selection.budgets import OWN, checked_sparsity, kept_count, left_in
from snip.selection.repair import with_a_path
from snip.selection.select import require_left, require_some_kept, select, with_survivors
from snip.training.config import TrainConfig
from snip.training.loss import why_no_loss
from snip.training.parts import Data, data_for, data_of
from snip.training.phases import Phases
from snip.training.schedule import shortened
from snip.training.session import Options
from snip.training.state import snapshot

EPOCHS = 20  # which phases are parts of, for data without a schedule of its own
BY_ITSELF = "connections that the method kept"


def own_count(note: str | None) -> int | None:
    """Read from the note of `Course.trimmed` how many connections the method's own rule kept."""
    match = re.search(rf"([\d,]+) {BY_ITSELF}", note or "")
    return None if match is None else int(match[1].replace(",", ""))


@dataclasses.dataclass(eq=False)
class Course:
    """A trained network, its data and its schedule, and what a method does with them."""

    phases: Phases
    sparsity: float
    weights: dict[str, nn.Parameter]  # the connections that compete, by parameter name

    @property
    def model(self) -> nn.Module:
        """The network."""
        return unwrap(self.phases.model)

    @property
    def config(self) -> TrainConfig:
        """The training that the network had; phases are parts of it."""
        return self.phases.config

    @property
    def kept(self) -> int:
        """kappa: the number of connections that may stay."""
        return self._count(self.sparsity)

    @property
    def images(self) -> int:
        """N: images in an epoch of training."""
        return self.phases.data.train.images

    def batches(self, images: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the first batches of the training data, with at least so many images."""
        data, device = self.phases.data, device_of(self.model)
        first = data.first()
        count = -(-images // len(first[1]))
        batches = [first] if count == 1 else list(islice(data.train.epoch(0), count))
        return [(inputs.to(device), labels.to(device)) for inputs, labels in batches]

    def values(self) -> dict[str, torch.Tensor]:
        """Return the connections' weights, without their gradients."""
        return {name: weight.detach() for name, weight in self.weights.items()}

    def keep(self, scores: Mapping[str, torch.Tensor], sparsity: float | None = None) -> Masks:
        """Keep exactly as many of the highest scores, of what the model still has."""
        within = held_masks(self.model)
        scores = with_survivors(Network.of(self.model).normed, scores, within=within)
        asked = self.sparsity if sparsity is None else sparsity
        return select(scores, sparsity=asked, within=within)

    def trimmed(self, scores: Mapping[str, torch.Tensor], natural: int) -> Masks:
        """`keep`, with a note if the method's own rule would have kept another number."""
        masks = self.keep(scores)
        if natural == masks.kept:
            return masks
        word = "trimmed" if natural > masks.kept else "filled up"
        note = f"{word} from the {natural:,} {BY_ITSELF} to {masks.kept:,}"
        return masks.with_provenance(note=note)

    def in_rounds(
        self, prune_to: Callable[[float], Masks], rounds: Rounds, training: TrainConfig
    ) -> Masks:
        """Prune to each sparsity in turn, and train after each but the last.

        The training after the last is the one that follows every method.
        """
        *earlier, last = rounds(self.sparsity)
        within = held_masks(self.model)
        left = sum(left_in(name, weight, within) for name, weight in self.weights.items())
        for number, sparsity in enumerate(earlier, 1):
            if self._count(sparsity) > left:
                continue  # the network was pruned before, to less than this round would leave
            self.phases.train(f"round-{number}", training, start=partial(prune_to, sparsity))
        return prune_to(last)

    def _count(self, sparsity: float) -> int:
        return kept_count(sum(w.numel() for w in self.weights.values()), sparsity)


def flattened(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Join all values in one vector, as a method's hooks keep them for checkpoints."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors.values()])


def views(flat: torch.Tensor, like: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Give the parts of a vector the shapes and names of `like`; they share its memory."""
    parts = flat.split([tensor.numel() for tensor in like.values()])
    return {n: part.view(t.shape) for (n, t), part in zip(like.items(), parts, strict=True)}


class LayerSettings(NamedTuple):
    """Settings of one layer. The defaults treat all layers of a network alike."""

    # LWC: the threshold in standard deviations of the weights. Han et al. publish the densities
    # (8, 9, 26% and 66, 12, 8, 19%); these are the thresholds that leave them of Gaussian weights.
    quality: float = 1.0
    # DNS: c_rate, the threshold in deviations of |w| above its mean. Estimated from the weights
    # that Guo et al. released; their forks use 3.7, 2.8, 2.8 and about 2, 3, 3.8, 2.6.
    c_rate: float = 0.0
    # L-OBS: the fraction kept, to be scaled. The layer ratios in the authors' development branch
    # (5, 20, 70% and 60, 60, 5, 30%). None: in proportion to (inputs + outputs) / weights, as ERK.
    kept: float | None = None


# From the papers and their authors' code; the sources are named in each column above.
LAYERS: dict[type[nn.Module], dict[str, LayerSettings]] = {
    LeNet300100: {
        "fc1": LayerSettings(quality=1.75, c_rate=3.7, kept=0.05),
        "fc2": LayerSettings(quality=1.70, c_rate=2.8, kept=0.20),
        "fc3": LayerSettings(quality=1.13, c_rate=2.8, kept=0.70),
    },
    LeNet5Caffe: {
        "conv1": LayerSettings(quality=0.44, c_rate=2.0, kept=0.60),
        "conv2": LayerSettings(quality=1.56, c_rate=3.0, kept=0.60),
        "fc1": LayerSettings(quality=1.75, c_rate=3.8, kept=0.05),
        "fc2": LayerSettings(quality=1.31, c_rate=2.6, kept=0.30),
    },
}


def settings_of(model: nn.Module, parameter: str) -> LayerSettings:
    """Return the settings of the layer that a parameter belongs to."""
    return LAYERS.get(type(model), {}).get(layer_name(parameter), LayerSettings())


def competing(
    name: str, method: DuringTraining, model: nn.Module, params: Predicate | None, sparsity: float
) -> dict[str, nn.Parameter]:
    """Return the parameters that a method will prune; raise if it cannot, or not so far.

    Where the published method leaves biases alone they all stay, and do not count.
    """
    chosen = Network.of(model, params).require_scorable()
    chosen = {n: p for n, p in chosen.items() if method.biases or is_weight(p.shape)}
    if method.layers:
        require_plain(name, unwrap(model), chosen, method.layers)
    if not method.norms:
        _require_no_norms(name, unwrap(model), chosen)
    total = sum(p.numel() for p in chosen.values())
    require_some_kept(total, checked_sparsity(sparsity))
    require_left(kept_count(total, sparsity), chosen, held_masks(model))
    return chosen


def _require_no_norms(method: str, model: nn.Module, weights: Mapping[str, object]) -> None:
    """Raise for weights under weight or spectral norm.

    A method that tries zeros as it trains would make the length of a row zero, and the loss NaN.
    """
    normed = next((name for name in normed_weights(model) if name in weights), None)
    if normed is not None:
        raise InputError(
            f"method {method!r} cannot take {normed!r}, which is under weight or spectral norm: a "
            "row of zeros has no length to divide by. Leave it out with params=..., or use another "
            "method, such as 'lwc' or 'snip'."
        )


def prune_in_phases(
    name: str,
    method: DuringTraining,
    phases: Phases,
    sparsity: float,
    params: Predicate | None,
    weights: dict[str, nn.Parameter],
) -> Masks:
    """Prune the trained network of `phases`, which then holds the masks that are returned.

    `weights` are those of `competing`.
    """
    model = unwrap(phases.model)
    out = dict(Network.of(model, params).left_out)
    for parameter, _ in model.named_parameters():
        if parameter not in weights:
            out.setdefault(parameter, "bias, kept")
    course = Course(phases, float(sparsity), weights)
    inputs, labels = course.batches(1)[0]
    reason = why_no_loss(phases.model, inputs, labels)
    if reason is not None:
        raise reason
    call = Call((inputs,), {})
    masks = method.prune(course).with_provenance(
        method=name,
        scope=OWN,
        sparsity_asked=float(sparsity),
        left_out=out,
        seed=phases.config.seed,
        uses=look(model, call).uses,
        versions=versions(),
        **one_sample(inputs),
    )
    masks.apply(model)
    # A repair would not be the method any more: a layer that lost everything gives a warning.
    with_a_path(Network.of(model), masks, call, None, repair=False)
    return masks


def prune_trained(
    name: str,
    method: DuringTraining,
    model: nn.Module,
    data: Any,
    sparsity: float,
    params: Predicate | None,
    training: TrainConfig | None,
) -> Masks:
    """Prune a trained model on a snip data set, or on batches that can be read again and again.

    Phases are parts of `training`. If anything fails, the model is as it was.
    """
    weights = competing(name, method, model, params, sparsity)
    if training is not None and not isinstance(training, TrainConfig):
        raise KindError(
            f"training is a {type(training).__name__}: give a snip.TrainConfig, such as "
            "TrainConfig(lr=0.02, iterations=10_000)."
        )
    # This trains, also if the caller is inside no_grad().
    with torch.inference_mode(False), torch.enable_grad(), _own_gradients(unwrap(model)):
        parts, config = _to_train_on(data, training)
        before, masks = snapshot(unwrap(model)), held_masks(model)
        try:
            phases = Phases(model, parts, config, Options(engine="auto"))
            return prune_in_phases(name, method, phases, sparsity, params, weights)
        except BaseException:
            release(model)
            unwrap(model).load_state_dict(before, strict=False)
            if masks is not None:
                masks.apply(model)
            raise


@contextmanager
def _own_gradients(model: nn.Module) -> Iterator[None]:
    """Set gradients aside inside the block: held masks would write into them."""
    before = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, _ in before:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in before:
            parameter.grad = gradient


def _to_train_on(data: Any, training: TrainConfig | None) -> tuple[Data, TrainConfig]:
    """Return the data as batches, and the training that phases are parts of."""
    data = [data] if is_pair_of_tensors(data) else data  # one batch, as other methods take it
    if isinstance(data, Dataset):
        parts = data_for(data, training or TrainConfig())
        epoch = len(data.train) // TrainConfig().batch_size
    else:
        parts = data_of(data)
        epoch = len(parts.train)
    config = training or shortened(TrainConfig(lr=0.02), EPOCHS * max(1, epoch))
    # Nobody reads the errors on the way.
    return parts, dataclasses.replace(config, eval_every=config.iterations)
