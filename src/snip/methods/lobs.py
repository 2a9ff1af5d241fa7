"""L-OBS (Dong et al. 2017): layer by layer, remove what its outputs need least and make up for it.

Of every layer, the squared change of its outputs Z = W y on training data is a quadratic function
of the weights, with the same Hessian H = mean y y' for every output unit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from snip.common.console import track
from snip.common.errors import InputError
from snip.masks import Masks, held_masks
from snip.methods.course import Course, settings_of
from snip.methods.kinds import DuringTraining, Needs, exponential
from snip.methods.layer_matrices import (
    MATRICES,
    LayerMatrix,
    layers_of,
    observed,
    require_called,
)
from snip.network.untouched import undisturbed
from snip.selection.budgets import apportion, kept_count, left_in
from snip.selection.topk import keep_top
from snip.training.phases import steady

# Five rounds of half as long a training at half the rate end at 2.77% in place of 2.19%
# (lenet-300-100 at 98.5%, one seed): what is removed at once cannot be made up for later.
METHOD = "lobs"
ROUNDS = 10
SHARE, LR_SCALE = 0.1, 1.0
IMAGES = 5000


def saliency(matrix: torch.Tensor, hessian: torch.Tensor) -> torch.Tensor:
    """w_q^2 / (2 [H^-1]_qq): the least change of the outputs without w_q. matrix: [groups, O, K]

    It is exact if all other weights may make up for w_q, as in the first round. Later rounds, in
    which some are removed already, use the same H^-1 of all weights, and their ranking is an
    approximation. The exact one, tried over ten rounds on four small layers, gained nothing.
    """
    diagonal = torch.linalg.inv(hessian).diagonal(dim1=-2, dim2=-1)
    return matrix.square() / (2 * diagonal[:, None])


def compensated(matrix: torch.Tensor, kept: torch.Tensor, hessian: torch.Tensor) -> torch.Tensor:
    """Values of the kept weights that change the outputs least: w_S + H_SS^-1 H_SP w_P per unit.

    The authors remove one weight after another with an H^-1 that they do not update, which at high
    sparsity can be worse than no compensation.
    """
    better = torch.zeros_like(matrix)
    for group, unit in kept.any(2).nonzero().tolist():
        s = kept[group, unit].nonzero().flatten()
        some = hessian[group][s]
        target = some @ matrix[group, unit]  # H_SS w_S + H_SP w_P
        factor = torch.linalg.cholesky(some[:, s])
        better[group, unit, s] = torch.cholesky_solve(target[:, None], factor).flatten()
    return better


def budgets(
    pattern: Mapping[str, float], sizes: Mapping[str, int], left: Mapping[str, int], kept: int
) -> dict[str, int]:
    """Number of connections that each layer keeps: a factor times its pattern, at most all it has.

    The factor is found by bisection, and the numbers add up to `kept`.
    """

    def wanted(factor: float) -> dict[str, float]:
        return {n: min(left[n], factor * pattern[n] * sizes[n]) for n in sizes}

    low, high = 0.0, 1 / min(pattern.values())
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if sum(wanted(middle).values()) > kept else (middle, high)
    return apportion(wanted(low), kept, left)


def prune(course: Course) -> Masks:
    """Prune in rounds of equal factors, by the layers' inputs in the network of each round."""

    def prune_to(sparsity: float) -> Masks:
        layers = _seen_layers(course)
        values = {name: weight.double().cpu() for name, weight in course.values().items()}
        within: Mapping[str, torch.Tensor] = held_masks(course.model) or {}
        masks: dict[str, torch.Tensor] = {}
        for name, count in _counts(course, layers, within, sparsity).items():
            layer = layers[name]
            matrix, hessian = layer.joined(values), layer.damped_hessian()
            with _invertible(name, hessian):
                masks |= (kept := keep_top(layer.split(saliency(matrix, hessian)), count, within))
                better = compensated(matrix, layer.joined(kept), hessian)
            for parameter, value in layer.split(better).items():
                course.weights[parameter].data.copy_(value)
        return Masks({name: masks[name] for name in course.weights})

    training = steady(course.config, SHARE, lr_scale=LR_SCALE)
    return course.in_rounds(prune_to, exponential(ROUNDS), training)


@torch.no_grad()
def _seen_layers(course: Course) -> dict[str, LayerMatrix]:
    """Return the layers with their H over some training images."""
    modules = layers_of(course.model, course.weights)
    layers = {name: LayerMatrix(name, module, course.weights) for name, module in modules.items()}
    with undisturbed(course.model):
        course.model.eval()
        # At once: the network may write to a layer's input later, and nothing has to be kept.
        with observed(modules, lambda name, inputs, _output: layers[name].see(inputs)):
            for images, _ in track(course.batches(IMAGES), description="inputs of the layers"):
                course.model(images)
    require_called(METHOD, modules, course.weights, [n for n in layers if layers[n].positions])
    for name, layer in layers.items():
        if not torch.isfinite(layer.hessian).all():
            raise InputError(
                f"method {METHOD!r} cannot rank: among the inputs of layer {name!r} are NaN or "
                "infinite values. Look for such values in the data and in the weights."
            )
    return layers


@contextmanager
def _invertible(name: str, hessian: torch.Tensor) -> Iterator[None]:
    """Explain why the H of a layer cannot be inverted."""
    try:
        yield
    except torch.linalg.LinAlgError as error:
        size = float(hessian.diagonal(dim1=-2, dim2=-1).max()) ** 0.5
        raise InputError(
            f"method {METHOD!r} cannot invert the second derivatives of layer {name!r}: its inputs "
            f"are as large as {size:.3g} in the mean and tell too much of each other. Scale the "
            "data, leave the layer out with params=..., or use another method, such as 'lwc' or "
            "'snip'."
        ) from error


def _counts(
    course: Course,
    layers: Mapping[str, LayerMatrix],
    within: Mapping[str, torch.Tensor],
    sparsity: float,
) -> dict[str, int]:
    """Number of connections that each layer keeps, its weights and biases together."""
    sizes, left, pattern = {}, {}, {}
    for name, layer in layers.items():
        sizes[name] = sum(map(math.prod, layer.shapes.values()))
        left[name] = sum(left_in(n, course.weights[n], within) for n in layer.shapes)
        published = settings_of(course.model, f"{name}.weight").kept
        widest = max(layer.shapes.values(), key=math.prod)
        pattern[name] = published or sum(widest) / math.prod(widest)
    return budgets(pattern, sizes, left, kept_count(sum(sizes.values()), sparsity))


L_OBS = DuringTraining(
    prune,
    Needs("Hessian", pretraining=True, prunings="many", hyperparameters=True, architecture=True),
    biases=True,
    layers=MATRICES,
    lr_scale=LR_SCALE,
)
