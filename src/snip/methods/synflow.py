"""SynFlow: keep the paths that carry the most, without any data (Tanaka et al. 2020).

The network is made linear: every weight becomes its absolute value, every bias zero. On an input
of ones, R is the sum of its outputs, and w * dR/dw is what flows through a connection. The flow
through each layer is the same, so that a layer with few connections has large scores, and in many
rounds no layer loses its last ones while others have some to spare.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from snip.common.checks import all_finite
from snip.common.errors import InputError
from snip.common.text import first_line
from snip.distributed.wrapped import REPLICATED
from snip.methods.kinds import WEIGHTS, AtInitialisation, Needs, exponential
from snip.network.calls import Call, copy_of, shared_call, tensors_in
from snip.network.network import Network
from snip.network.norms import attribute_names
from snip.network.parameters import Predicate
from snip.network.untouched import batch_norm_in
from snip.scoring.batches import LossFn, first_call
from snip.scoring.gradients import Scores
from snip.scoring.settings import Scoring

ROUNDS = 100  # with few rounds, layers collapse at high sparsities
DTYPE = torch.float64  # R is a product of all layers, too large for float32 in a deep network
SHIFTS = ("bias", "running_mean")  # what adds to a signal instead of passing it on


def synflow(
    model: nn.Module | Network,
    batches: Any,
    loss_fn: LossFn | None = None,
    *,
    params: Predicate | None = None,
    scoring: Scoring = Scoring(),
) -> Scores:
    """|w * dR/dw| per parameter name, in float64; the model is left as found.

    The first batch only shows how the loss calls the model: its real numbers become ones. Token
    ids and other whole numbers stay as they are, and embeddings take part as weights do.
    """
    network = Network.of(model, params)
    chosen = network.require_competing()
    args, kwargs = _ones(_seen(network, batches, loss_fn), scoring.batch_dim)
    linear = linearized(network.module)
    weights = [linear.get_parameter(name) for name in chosen]
    with torch.inference_mode(False), torch.enable_grad(), batch_norm_in(linear, "eval"):
        total = _summed(_output(linear, args, kwargs))
        gradients = torch.autograd.grad(total, weights, allow_unused=True)
    scores = {
        name: torch.zeros_like(w) if g is None else (w.detach() * g).abs_()
        for name, w, g in zip(chosen, weights, gradients, strict=True)
    }
    _check_finite(scores)
    return scores


def linearized(model: nn.Module) -> nn.Module:
    """A copy in float64 and eval mode with absolute values of all tensors, and with shifts zero."""
    linear = copy_of(model).to(DTYPE).eval()
    keys = attribute_names(linear)
    with torch.no_grad():
        for name, tensor in [*linear.named_parameters(), *linear.named_buffers()]:
            if tensor.is_floating_point():
                key = keys.get(name, name.rpartition(".")[2])
                tensor.zero_() if any(shift in key for shift in SHIFTS) else tensor.abs_()
    return linear


def _seen(network: Network, batches: Any, loss_fn: LossFn | None) -> Call:
    """The call of the model that the loss makes.

    Each process may have seen another batch, of other whole numbers: the first one's counts.
    """
    ranks = network.ranks
    with ranks.raise_on_all():
        own = first_call(network, batches, loss_fn)
    seen = shared_call(ranks, own, network.given)
    if seen is None:
        raise InputError(
            "what the loss calls the model with cannot be sent to other processes (pickle): call "
            "it with tensors and plain values, or use another method, such as snip or force."
        )
    return seen


def _ones(call: Call, batch_dim: int) -> Call:
    """The same call with ones for all real numbers; of one sample, if that is all there is."""
    sizes = {t.shape[batch_dim] for t in tensors_in(call) if t.ndim > batch_dim}
    alike = len(sizes) == 1 and all(t.is_floating_point() for t in tensors_in(call))

    def ones(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        made = torch.ones_like(tensor, dtype=DTYPE)
        return made.narrow(batch_dim, 0, 1) if alike and tensor.ndim > batch_dim else made

    return call.map(ones)


def _output(linear: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    usual = torch.get_default_dtype()
    torch.set_default_dtype(DTYPE)  # for tensors that a forward makes, such as a first hidden state
    try:
        return linear(*args, **kwargs)
    except (RuntimeError, TypeError, ValueError) as error:
        raise InputError(
            "synflow runs the network in float64 on an input of ones, which failed "
            f"({first_line(error)}): use another method, such as snip or force."
        ) from error
    finally:
        torch.set_default_dtype(usual)


def _summed(output: Any) -> torch.Tensor:
    """R: the sum of all that the network returns; a single number is a loss, and no output."""
    found = [t.sum() for t in tensors_in(output) if t.requires_grad and t.ndim]
    if not found:
        raise InputError(
            "the network returns no tensor that depends on its weights, which synflow would sum "
            "up: let forward return it, or use another method, such as snip."
        )
    return torch.stack(found).sum()


def _check_finite(scores: Scores) -> None:
    bad = next((name for name, score in scores.items() if not all_finite(score)), None)
    if bad is not None:
        raise InputError(
            f"the flow through {bad!r} is not finite even in float64: lower the scale of the "
            "initialisation (snip.initialize(model) redraws it), or use another method."
        )


SYNFLOW = AtInitialisation(
    synflow,
    Needs("synaptic flow", prunings=str(ROUNDS), hyperparameters=True),
    rounds=exponential(ROUNDS),
    reads=WEIGHTS,
    called=True,
    shared=(REPLICATED,),
)
