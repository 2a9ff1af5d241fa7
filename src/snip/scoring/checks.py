"""Refuses models that cannot be scored, and scores that say nothing."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from snip.common.errors import InputError, warn
from snip.common.text import listed, percent
from snip.distributed.models import SHARDED, ranks_of, sharing
from snip.distributed.shards import local
from snip.distributed.wrappers import unwrap
from snip.masks import held_masks
from snip.masks.masks import MIN_ZERO_SHARE, share_of_zeros
from snip.network.layout import is_weight
from snip.network.network import Network
from snip.network.norms import PARAMETRIZED, normed_weights
from snip.network.parameters import BY_PREDICATE, Predicate, ordinary
from snip.scoring.gradients import Scores
from snip.scoring.waking import silent_scores

ROWS = 8  # of each weight: few, as nearly all models have no zeros there
MUCH = 0.25  # of the parameters; norms and biases of ordinary networks are far less


def scorable_parameters(model: nn.Module, params: Predicate | None) -> dict[str, nn.Parameter]:
    """The parameters that will compete, or an error that says why this model cannot be scored."""
    plain = ordinary(model)
    shared = sharing(model)  # which refuses what cannot be taken
    Network.of(plain, params).refuse_torch_pruned()
    chosen = Network.of(plain, params).require_competing()
    normed = [name for name in normed_weights(plain) if name in chosen]
    if shared == SHARDED and normed:
        raise InputError(
            f"{listed(normed)} is under weight norm or spectral norm, of which a process would "
            "have a part only (fully_shard): use DDP, or leave it out with params=..."
        )
    return chosen


def without_biases(model: nn.Module, params: Predicate | None) -> tuple[Predicate, tuple[str, ...]]:
    """A predicate for the same parameters but the biases, and the names of those."""
    chosen = scorable_parameters(model, params)
    biases = tuple(name for name, parameter in chosen.items() if not is_weight(parameter.shape))
    weights = chosen.keys() - biases
    return (lambda name, module, parameter: name in weights), biases


def check_signal(model: nn.Module, scores: Scores) -> list[str]:
    """Refuse scores that are zero everywhere; warn of layers whose scores are, and name them."""
    weights = {name: score for name, score in scores.items() if is_weight(score.shape)} or scores
    silent = silent_scores(weights)
    if len(silent) == len(weights):
        raise InputError(
            "every connection sensitivity is zero: no weight moves the loss, so there is nothing "
            f"to rank. {_zero_weights(model, scores)}"
        )
    if silent:
        warn(
            f"the loss does not depend on {listed(silent)}: its scores are zero all over, "
            "so the layer goes first. Is it used in the loss, is it initialised to non-zero, and "
            "does no checkpoint(..., use_reentrant=True) keep its gradient back?",
        )
    return silent


def _zero_weights(model: nn.Module, scores: Scores) -> str:
    """Which weights are all zero, and the least that helps."""
    zero = [
        name
        for name, parameter in ordinary(model).named_parameters()
        if name in scores and is_weight(parameter.shape) and not local(parameter).any()
    ]
    if not zero:
        return "Are all gradients zero? snip.initialize(model) redraws the weights."
    return (
        f"All of {listed(zero)} is zero: snip.Scoring(zero_parts='woken') scores it as if it were "
        "drawn, snip.initialize(model) redraws everything."
    )


def zero_biases(model: nn.Module, scores: Scores) -> int:
    """How many of the biases that compete are zero: they have no sensitivity, and go first."""
    biases = [
        local(parameter)
        for name, parameter in unwrap(model).named_parameters()
        if name in scores and not is_weight(parameter.shape)
    ]
    zero = sum(bias.numel() - int(bias.count_nonzero()) for bias in biases)
    return sum(ranks_of(model).everyones(zero)) if sharing(model) == SHARDED else zero


def warn_of_zeros(model: nn.Module, params: Predicate | None) -> None:
    """Say so if a model that holds no masks looks pruned: its zeros compete, and may be kept."""
    if held_masks(model) is not None:
        return
    chosen = scorable_parameters(model, params)
    weights = {name: local(p) for name, p in chosen.items() if is_weight(p.shape)}
    if share_of_zeros({name: weight[:ROWS] for name, weight in weights.items()}) < MIN_ZERO_SHARE:
        return
    zeros = share_of_zeros(weights)
    if zeros >= MIN_ZERO_SHARE:
        warn(
            f"{percent(zeros)} of the weights are zero and the model holds no masks: if it was "
            "pruned before, snip.Masks.from_zeros(model).apply(model) comes first, and what is "
            "left is pruned further. As it is, zeros may be among the connections that are kept."
        )


def warn_of_left_out(model: nn.Module, out: Mapping[str, str]) -> None:
    """Say how much of the model stays dense, if that is much and nobody asked for it.

    The sparsity asked for is that of what is up for pruning. Tensors that a forward uses by itself,
    layers that Snip does not know, frozen weights and embeddings are not.
    """
    sizes = {name: parameter.numel() for name, parameter in unwrap(model).named_parameters()}
    unasked = [
        name
        for name in sorted(out, key=lambda name: -sizes[name])
        if out[name] != BY_PREDICATE and not out[name].startswith(PARAMETRIZED)
    ]
    share = sum(sizes[name] for name in unasked) / max(1, sum(sizes.values()))
    if share > MUCH:
        named = ", ".join(f"{name!r} ({out[name]})" for name in unasked[:3])
        more = f" and {len(unasked) - 3} more" if len(unasked) > 3 else ""
        warn(
            f"{percent(share)} of the model's parameters are not up for pruning and stay dense: "
            f"{named}{more}. params=lambda name, module, param: ... chooses what is pruned.",
        )


def warn_of_parametrized(out: Mapping[str, str]) -> None:
    """Name the weights that stay dense because their layers compute them from other tensors.

    `out` has the parameters that are left out, with the reasons.
    """
    hidden = [name for name, reason in out.items() if reason.startswith(PARAMETRIZED)]
    if hidden:
        warn(
            f"{listed(hidden)} stay dense: their layers compute the weight from them. Remove the "
            "parametrization before pruning (torch.nn.utils.parametrize.remove_parametrizations).",
        )
