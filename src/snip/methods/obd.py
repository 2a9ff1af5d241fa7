"""OBD (LeCun et al. 1990): remove the weights that the loss, to second order, needs least."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import nn

from snip.common.console import track
from snip.masks import Masks
from snip.methods.calls import Call, recorded, require_called, require_images, require_logits
from snip.methods.course import Course
from snip.methods.kinds import DuringTraining, Needs
from snip.methods.layers import (
    LARGEST,
    MATRICES,
    Takes,
    columns,
    matrices,
    parameter_of,
    parts,
    rows,
)
from snip.methods.schedules import exponential
from snip.network.untouched import undisturbed
from snip.scoring.gradients import Scores
from snip.training.phases import steady

ROUNDS = 8
SHARE, LR_SCALE = 0.08, 0.1
IMAGES = 2000  # on which the second derivatives are measured
MOST_CLASSES = 20  # with more, so many labels per image are drawn from the network's answers
KEPT = (
    4 * LARGEST
)  # elements of patches that are kept; those of other layers are cut anew each time


def hessian_diagonal(
    model: nn.Module,
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
    weights: Mapping[str, nn.Parameter],
) -> Scores:
    """The diagonal of the Gauss-Newton matrix of the mean cross-entropy, in float64.

    h_k = mean over images of sum_c p_c (d log p_c / d w_k)^2, with p the network's own answers:
    OBD's Levenberg-Marquardt approximation, without its neglect of cross terms between units. With
    ReLU and max pooling the logits are linear in any one weight, so that it is the exact Hessian's.
    """
    layers = matrices(model, weights)
    # One of its own, so that the same network has the same diagonal when a killed run goes on.
    generator = torch.Generator().manual_seed(0)
    found = {name: torch.zeros_like(w, dtype=torch.float64) for name, w in weights.items()}
    images = 0
    with undisturbed(model), torch.enable_grad():
        model.eval()
        for inputs, _ in batches:
            images += len(inputs)
            with recorded(layers) as calls:
                logits = model(inputs)
            require_logits("obd", logits, len(inputs))
            require_called("obd", weights, layers, [n for n in calls if calls[n]], logits)
            require_images("obd", weights, layers, calls, len(inputs))
            _add(found, layers, calls, _weighted_answers(logits, generator))
    return {name: total / images for name, total in found.items()}


def _gradients(answer: torch.Tensor, outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Of what the layers gave; zeros where the answer does not depend on it."""
    found = torch.autograd.grad(answer, outputs, retain_graph=True, allow_unused=True)
    pairs = zip(found, outputs, strict=True)
    return [torch.zeros_like(output) if g is None else g for g, output in pairs]


def _weighted_answers(logits: torch.Tensor, generator: torch.Generator) -> Iterator[torch.Tensor]:
    """sum over images of sqrt(p_c) log p_c, once per class c: its gradients, squared, add up."""
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


def _add(
    found: Scores,
    layers: Mapping[str, nn.Module],
    calls: Mapping[str, list[Call]],
    answers: Iterable[torch.Tensor],
) -> None:
    """Add the squared gradients of the answers about one batch, layer by layer."""
    used = {name: layer for name, layer in layers.items() if calls[name]}
    outputs = [output for name in used for _, output in calls[name]]
    patches = _kept_patches(used, calls)
    for answer in answers:
        gradients = iter(_gradients(answer, outputs))
        for name, layer in used.items():
            d = torch.cat([rows(layer, next(gradients)) for _ in calls[name]], 3)
            for part in parts(len(d), _sizes(layer, calls[name])[1]):
                kept = patches.get(name)
                x = _patches(layer, calls[name], part) if kept is None else kept[part]
                _add_squares(found, name, x, d[part])


def _patches(layer: nn.Module, calls: list[Call], part: slice) -> torch.Tensor:
    """[B, groups, K, positions] of some images; the calls of a layer are so many more positions."""
    return torch.cat([columns(layer, inputs[part]) for inputs, _ in calls], 3)


def _sizes(layer: nn.Module, calls: list[Call]) -> tuple[int, int]:
    """Elements of an image's patches, and of the largest tensor that is made of an image."""
    weight: torch.Tensor = layer.weight  # type: ignore[assignment]
    positions = sum(rows(layer, output).shape[3] for _, output in calls)
    cut = weight[0].numel() * getattr(layer, "groups", 1) * positions
    return cut, max(cut, weight.numel()) if positions > 1 else cut


def _kept_patches(
    layers: Mapping[str, nn.Module], calls: Mapping[str, list[Call]]
) -> dict[str, torch.Tensor]:
    """The patches of a batch, of as many layers as may be kept for all answers."""
    found: dict[str, torch.Tensor] = {}
    room = KEPT
    for name, layer in layers.items():
        size = len(calls[name][0][0]) * _sizes(layer, calls[name])[0]
        if size <= room:
            room -= size
            found[name] = _patches(layer, calls[name], slice(None))
    return found


def _add_squares(found: Scores, name: str, x: torch.Tensor, d: torch.Tensor) -> None:
    """Add the squared gradient of each image. Positions add up before the square.

    x: [B, groups, K, positions], what the layer's matrix was applied to; d: [B, groups, O,
    positions], the gradient of what came out.
    """
    weight, bias = parameter_of(name, "weight"), parameter_of(name, "bias")
    if weight in found:
        if x.shape[3] == 1:  # the square of a product is the product of the squares
            squares = torch.einsum("bgol,bgkl->gok", d.square(), x.square())
        else:
            squares = torch.einsum("bgol,bgkl->bgok", d, x).square_().sum(0)
        found[weight] += squares.reshape(found[weight].shape)
    if bias in found:
        found[bias] += d.sum(3).square().sum(0).flatten()


def saliencies(
    weights: Mapping[str, torch.Tensor], diagonal: Mapping[str, torch.Tensor], decay: float
) -> Scores:
    """(h + decay) w^2 / 2: what the loss, with its penalty decay w^2 / 2, loses with a weight."""
    return {n: (diagonal[n] + decay) * w.double().square() / 2 for n, w in weights.items()}


def prune(course: Course) -> Masks:
    """Rounds of equal factors; second derivatives of the network as it is then."""

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
    layers=Takes(MATRICES),
)
