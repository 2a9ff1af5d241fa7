"""GraSP: keep the connections whose removal lowers the gradient's norm most (Wang et al. 2020)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from snip.common.errors import InputError
from snip.distributed.wrapped import REPLICATED
from snip.methods.kinds import AtInitialisation, Needs
from snip.network.network import Network
from snip.network.parameters import Predicate
from snip.scoring.batches import LossFn, as_batches, cross_entropy
from snip.scoring.gradients import Scores, accumulated_gradients
from snip.scoring.settings import Scoring

TEMPERATURE = 200.0  # divides the logits: of nearly uniform answers every class has a say
# What torch's graph has where a second derivative is missing. Of some of these torch says nothing,
# and leaves their part of the derivative out.
ONCE = ("torch::autograd::Error", "torch::autograd::NotImplemented")
SIGNED = "abs_of_sum"  # the reduction that keeps signs until the batches are added up


def grasp(
    model: nn.Module | Network,
    batches: Any,
    loss_fn: LossFn | None = None,
    *,
    params: Predicate | None = None,
    scoring: Scoring = Scoring(),
) -> Scores:
    """w * (H g) with its sign, per parameter name; the model is left as found.

    g is the gradient and H the Hessian over all batches. To first order, removing a connection
    changes the squared norm of the gradient by -2 w (H g): those that would raise it most go, and
    the highest w * (H g) stay. The default loss is cross-entropy of the logits over a temperature
    of 200; a loss of the user's is taken as it is.
    """
    _check_reduction(scoring)
    network = Network.of(model, params)
    weights = network.require_competing()
    kept = list(as_batches(batches))  # g is needed whole before the second pass
    loss_fn = loss_fn or partial(cross_entropy, temperature=TEMPERATURE)
    accumulated = partial(accumulated_gradients, network, loss_fn=loss_fn, params=None)
    gradient = accumulated(iter(kept), scoring=scoring)
    product = partial(hessian_product, list(gradient.values()))
    with _twice_differentiable():
        products = accumulated(iter(kept), scoring=scoring, derivative=product)
    return {name: product.mul_(weights[name].detach()) for name, product in products.items()}


def hessian_product(
    vector: Sequence[torch.Tensor], loss: torch.Tensor, weights: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """H v: the derivative of (dL/dw . v) by w, where only the first derivative has a graph."""
    live = torch.autograd.grad(loss, weights, create_graph=True, allow_unused=True)
    used = [(g, v.to(g.dtype)) for g, v in zip(live, vector, strict=True) if g is not None]
    # Layers of one model may be on several devices.
    along = torch.stack([(g * v).sum().to(loss.device) for g, v in used]).sum()
    if not along.requires_grad:  # the loss is linear in the weights
        return [torch.zeros_like(weight) for weight in weights]
    if any(node.name() in ONCE for node in _graph(along)):
        raise InputError(
            "grasp differentiates the loss twice, and a layer of this network allows it only once: "
            "use another method, such as snip or force."
        )
    found = torch.autograd.grad(along, weights, allow_unused=True)
    pairs = zip(found, weights, strict=True)
    return [torch.zeros_like(weight) if h is None else h for h, weight in pairs]


def _graph(tensor: torch.Tensor) -> Iterator[Any]:
    """The nodes that a tensor was computed by."""
    seen, todo = set(), [tensor.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            todo += [before for before, _ in node.next_functions]
            yield node


@contextmanager
def _twice_differentiable() -> Iterator[None]:
    """Have torch compute what it differentiates only once (fast attention, cuDNN) the plain way."""
    with (
        sdpa_kernel(SDPBackend.MATH),
        torch.backends.cudnn.flags(enabled=False),
        torch.backends.mkldnn.flags(enabled=False),
    ):
        yield


def _check_reduction(scoring: Scoring) -> None:
    if scoring.reduction != SIGNED:
        raise InputError(
            f"reduction is {scoring.reduction!r}, but the sign of a score means something to "
            f"grasp: use {SIGNED!r}."
        )


GRASP = AtInitialisation(grasp, Needs("gradient flow", hyperparameters=True), shared=(REPLICATED,))
