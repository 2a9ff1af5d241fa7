"""OBD (LeCun et al. 1990): remove the weights that the loss, to second order, needs least."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from snip.common.console import track
from snip.common.errors import InputError
from snip.masks import Masks
from snip.methods.course import Course
from snip.methods.kinds import DuringTraining, Needs, exponential
from snip.methods.layer_matrices import (
    MATRICES,
    columns,
    is_batched,
    layers_of,
    not_taken,
    observed,
    own_parameters,
    parameter_of,
    require_called,
    rows,
)
from snip.network.untouched import undisturbed
from snip.scoring.gradients import Scores
from snip.training.phases import steady

METHOD = "obd"
ROUNDS = 8
SHARE, LR_SCALE = 0.08, 0.1
IMAGES = 2000  # on which the second derivatives are measured
MOST_CLASSES = 20  # with more, so many labels per image are drawn from the network's answers
MAX_PATCH_ELEMENTS = 1 << 26  # of the patches of all layers for some images at once

Call = tuple[torch.Tensor, torch.Tensor]  # the input of a layer, and its output


def hessian_diagonal(
    model: nn.Module,
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
    weights: Mapping[str, nn.Parameter],
) -> Scores:
    """Diagonal of the Gauss-Newton matrix of the mean cross-entropy, in float64.

    h_k = mean over images of sum_c p_c (d log p_c / d w_k)^2, with p the network's own answers:
    OBD's Levenberg-Marquardt approximation, without its neglect of cross terms between units. With
    ReLU and max pooling the logits are linear in any one weight, so that it is the exact Hessian's.
    """
    layers = layers_of(model, weights)
    # One of its own, so that the same network has the same diagonal when a killed run goes on.
    generator = torch.Generator().manual_seed(0)
    totals = {name: torch.zeros_like(w, dtype=torch.float64) for name, w in weights.items()}
    images = 0
    with undisturbed(model), torch.enable_grad():
        model.eval()
        for inputs, _ in batches:
            images += len(inputs)
            _add(totals, model, layers, inputs, generator)
    return {name: total / images for name, total in totals.items()}


def _add(
    totals: Scores,
    model: nn.Module,
    layers: Mapping[str, nn.Module],
    inputs: torch.Tensor,
    generator: torch.Generator,
) -> None:
    """Add the squared gradients of some images, split where these need too much memory."""
    with recorded(layers) as calls:
        logits = model(inputs)
    _require_logits(logits, len(inputs))
    require_called(METHOD, layers, totals, [name for name in calls if calls[name]])
    _require_images(totals, layers, calls, len(inputs))
    most = max(1, MAX_PATCH_ELEMENTS // max(1, _elements_per_image(layers, calls)))
    if len(inputs) > most:
        del calls, logits
        for some in inputs.split(most):
            _add(totals, model, layers, some, generator)
        return
    # The calls of a layer are so many more positions.
    patches = {n: torch.cat([columns(layers[n], x) for x, _ in c], 3) for n, c in calls.items()}
    outputs = [output for own in calls.values() for _, output in own]
    for answer in _weighted_answers(logits, generator):
        gradients = iter(
            torch.autograd.grad(answer, outputs, retain_graph=True, materialize_grads=True)
        )
        for name, own in calls.items():
            d = torch.cat([rows(layers[name], next(gradients)) for _ in own], 3)
            _add_squares(totals, name, patches[name], d)


@contextmanager
def recorded(layers: Mapping[str, nn.Module]) -> Iterator[dict[str, list[Call]]]:
    """Inside the block, list the (input, output) of each call of each layer.

    A layer passes on a copy of its output, which a later operation may then write to.
    """
    calls: dict[str, list[Call]] = {name: [] for name in layers}

    def record(name: str, inputs: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        calls[name].append((inputs.detach(), output))
        return output.clone()

    with observed(layers, record):
        yield calls


def _elements_per_image(layers: Mapping[str, nn.Module], calls: Mapping[str, list[Call]]) -> int:
    """Count the elements of an image's patches, and of its largest gradient of a weight."""
    patches = largest = 0
    for name, layer in layers.items():
        weight: torch.Tensor = layer.weight  # type: ignore[assignment]
        positions = sum(rows(layer, output[:1]).shape[3] for _, output in calls[name])
        patches += weight[0].numel() * getattr(layer, "groups", 1) * positions
        largest = max(largest, weight.numel() if positions > 1 else 0)
    return patches + largest


def _require_images(
    weights: Mapping[str, object],
    layers: Mapping[str, nn.Module],
    calls: Mapping[str, list[Call]],
    images: int,
) -> None:
    """Raise for a layer whose inputs are not one per image, the batch first."""
    for name, layer in layers.items():
        for inputs, _ in calls[name]:
            if len(inputs) != images or not is_batched(layer, inputs):
                why = (
                    f"it needs to know which image an input belongs to, but for {images} images "
                    f"the layer was given {list(inputs.shape)}, in place of [{images}, ...]"
                )
                raise not_taken(METHOD, own_parameters(name, weights)[0], layer, why)


def _require_logits(logits: Any, images: int) -> None:
    """Raise for answers other than one row of finite logits per image."""
    shape = list(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
    if not isinstance(logits, torch.Tensor) or logits.ndim != 2 or len(logits) != images:
        raise InputError(
            f"method {METHOD!r} needs logits [images, classes], but for {images} images the "
            f"network gives {shape}: let it give one row of logits per image, or use another "
            "method, such as 'lwc' or 'snip'."
        )
    if not torch.isfinite(logits).all():
        raise InputError(
            f"method {METHOD!r} cannot rank: of the logits {int((~torch.isfinite(logits)).sum())} "
            f"of {logits.numel()} are NaN or infinite. Look for such values in the data and in the "
            "weights."
        )


def _weighted_answers(logits: torch.Tensor, generator: torch.Generator) -> Iterator[torch.Tensor]:
    """Yield, for each class c, the sum over images of sqrt(p_c) log p_c.

    The squares of their gradients add up to the diagonal.
    """
    answers = logits.log_softmax(1)
    likely = answers.detach().exp()
    if logits.shape[1] <= MOST_CLASSES:
        for kind in range(logits.shape[1]):
            yield (likely[:, kind].sqrt() * answers[:, kind]).sum()
        return
    # Drawn on the CPU, so that a network has the same diagonal on every device.
    chances = likely.cpu()
    drawn = torch.multinomial(chances, MOST_CLASSES, replacement=True, generator=generator)
    for kinds in drawn.to(likely.device).unbind(1):
        yield answers.gather(1, kinds[:, None]).sum() / MOST_CLASSES**0.5


def _add_squares(totals: Scores, name: str, x: torch.Tensor, d: torch.Tensor) -> None:
    """Add the squared gradient of each image. Positions add up before the square.

    x: [B, groups, K, positions], the operand of the layer's matrix; d: [B, groups, O, positions],
    the gradient of its outputs.
    """
    weight, bias = parameter_of(name, "weight"), parameter_of(name, "bias")
    if weight in totals:
        if x.shape[3] == 1:  # the square of a product is the product of the squares
            squares = torch.einsum("bgol,bgkl->gok", d.square(), x.square())
        else:
            squares = torch.einsum("bgol,bgkl->bgok", d, x).square_().sum(0)
        totals[weight] += squares.reshape(totals[weight].shape)
    if bias in totals:
        totals[bias] += d.sum(3).square().sum(0).flatten()


def saliencies(
    weights: Mapping[str, torch.Tensor], diagonal: Mapping[str, torch.Tensor], decay: float
) -> Scores:
    """(h + decay) w^2 / 2: rise of the loss, with its penalty decay w^2 / 2, without a weight."""
    return {n: (diagonal[n] + decay) * w.double().square() / 2 for n, w in weights.items()}


def prune(course: Course) -> Masks:
    """Prune in rounds of equal factors, by the second derivatives of the network of each round."""

    def prune_to(sparsity: float) -> Masks:
        batches = track(course.batches(IMAGES), description="second derivatives")
        diagonal = hessian_diagonal(course.model, batches, course.weights)
        scores = saliencies(course.values(), diagonal, course.config.weight_decay)
        return course.keep(scores, sparsity)

    training = steady(course.config, SHARE, lr_scale=LR_SCALE)
    return course.in_rounds(prune_to, exponential(ROUNDS), training)


OBD = DuringTraining(
    prune,
    Needs("Hessian", pretraining=True, prunings="many", hyperparameters=True),
    biases=True,
    layers=MATRICES,
)
