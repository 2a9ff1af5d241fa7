"""Prune by a method that trains: what it takes is checked, then it is given its course."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from snip.common.errors import KindError
from snip.data.dataset import Dataset
from snip.distributed.wrappers import unwrap
from snip.masks import Masks, held_masks, release, versions
from snip.methods.course import Course
from snip.methods.kinds import DuringTraining
from snip.methods.layers import require_layers, require_no_norms
from snip.network.calls import Call
from snip.network.layout import is_weight
from snip.network.network import Network
from snip.network.parameters import Predicate
from snip.network.reader import look
from snip.scoring.batches import is_pair_of_tensors, one_sample
from snip.selection.budgets import OWN, checked_sparsity, kept_count
from snip.selection.repair import with_a_path
from snip.selection.select import require_left, require_some_kept
from snip.training.config import TrainConfig
from snip.training.loss import why_no_loss
from snip.training.parts import Data, data_for, data_of
from snip.training.phases import Phases
from snip.training.schedule import shortened
from snip.training.session import Options
from snip.training.state import snapshot

EPOCHS = 20  # which phases are parts of, of data that has no schedule of its own


def competing(
    name: str, method: DuringTraining, model: nn.Module, params: Predicate | None, sparsity: float
) -> dict[str, nn.Parameter]:
    """The parameters that a method will prune; InputError if it cannot, or not to such a sparsity.

    Where the published method leaves biases alone they all stay, and do not count.
    """
    chosen = Network.of(model, params).require_scorable()
    chosen = {n: p for n, p in chosen.items() if method.biases or is_weight(p.shape)}
    require_layers(name, unwrap(model), chosen, method.layers)
    if not method.norms:
        require_no_norms(name, unwrap(model), chosen)
    total = sum(p.numel() for p in chosen.values())
    require_some_kept(total, checked_sparsity(sparsity))
    require_left(kept_count(total, sparsity), chosen, held_masks(model))
    return chosen


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
    out = Network.of(model, params).left_out
    for parameter, _ in model.named_parameters():
        if parameter not in weights:
            out.setdefault(parameter, "bias, kept")
    course = Course(phases, float(sparsity), weights)
    inputs, labels = course.batches(1)[0]
    call = Call((inputs,), {})
    reason = why_no_loss(phases.model, inputs, labels)
    if reason is not None:
        raise reason
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
    # Nothing is repaired, which would not be the method any more; but the user hears of it.
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
    # Whoever prunes inside no_grad() need not know that this method trains.
    with torch.inference_mode(False), torch.enable_grad(), own_gradients(unwrap(model)):
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
def own_gradients(model: nn.Module) -> Iterator[None]:
    """Give each parameter the gradient back that it had before, or none.

    Inside the block it has none: held masks would write into it.
    """
    before = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, _ in before:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in before:
            parameter.grad = gradient


def _to_train_on(data: Any, training: TrainConfig | None) -> tuple[Data, TrainConfig]:
    """The data as batches, and the training that phases are parts of."""
    data = [data] if is_pair_of_tensors(data) else data  # one batch, as other methods take it
    if isinstance(data, Dataset):
        config = training or _usual(len(data.train) // TrainConfig().batch_size)
        parts = data_for(data, config)
    else:
        parts = data_of(data)
        config = training or _usual(len(parts.train))
    # Errors on the way are of no use to anybody here.
    return parts, dataclasses.replace(config, eval_every=config.iterations)


def _usual(epoch: int) -> TrainConfig:
    """The training that phases are parts of unless the user gives one."""
    return shortened(TrainConfig(lr=0.02), EPOCHS * max(1, epoch))
