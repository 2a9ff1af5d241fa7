"""What is asked for by several processes that share a model: refused where it cannot be had there,
and in all of them where they do not ask for the same."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from snip.common.errors import InputError, warn
from snip.common.text import listed
from snip.distributed.models import REPLICATED, SHARDED, sharing
from snip.distributed.ranks import Ranks, everybody
from snip.masks import Masks
from snip.methods.kinds import AtInitialisation
from snip.network.network import Network, prunable_parameters
from snip.network.parameters import Predicate
from snip.scoring.batches import SeenBatches

ALIKE = "Call snip.prune with the same model and settings in every process."
# What a model that is split over processes can be asked for: the rest looks at whole layers.
OF_PARTS = {"granularity": "element", "budget": "connections"}


def check_not_shared(model: nn.Module, name: str) -> None:
    """Refuse a method that trains on a model that several processes share."""
    shared = sharing(model)
    if shared is not None:
        raise InputError(
            f"method {name!r} trains, which it does in one process: the model is under {shared}. "
            "Prune it before wrapping it and masks.apply(model) after that, or use a method such "
            "as 'snip'."
        )


def warn_of_own_masks(model: nn.Module) -> None:
    """Say that nobody compares what processes find that prune a model of their own each.

    The first process says nothing: it may prune for all of them. If every process prunes, there
    are others too.
    """
    everyone = everybody()
    if everyone.rank and sharing(model) is None:
        warn(
            f"process {everyone.rank} of {everyone.size} prunes a model that it does not share: "
            "if the data, the weights or the seed differ, so do the masks, and the replicas will "
            f"train apart. Prune the model after wrapping it in {REPLICATED} or {SHARDED}, or in "
            "one process, and masks.apply(model) in all."
        )


def check_shared(
    model: nn.Module, name: str, method: AtInitialisation, asked: Mapping[str, Any]
) -> None:
    """Refuse what would not give the masks of one process on the data of all."""
    shared = sharing(model)
    if shared is None:
        return
    if shared not in method.shared:
        raise InputError(
            f"method {name!r} cannot be reduced over processes under {shared}: prune in one "
            "process and masks.apply(model) in all, or use a method such as 'snip'."
        )
    reduction = asked["scoring"].reduction
    if reduction == "ema" or (shared == SHARDED and reduction != "abs_of_sum"):
        raise InputError(
            f"reduction is {reduction!r}, which depends on the order of the batches or on single "
            f"ones, and not only on their sum over processes ({shared}): use 'abs_of_sum'."
        )
    if shared == SHARDED:
        _check_of_parts(model, asked)


def _check_of_parts(model: nn.Module, asked: Mapping[str, Any]) -> None:
    for option, only in OF_PARTS.items():
        if str(asked[option]) != only:
            raise InputError(
                f"{option} is {str(asked[option])!r}, which looks at whole layers, and each "
                f"process has parts of them (fully_shard): use {only!r}, or DDP."
            )
    packed = list(Network.of(model).packed)
    if packed and not isinstance(asked["floor"], str) and asked["floor"]:
        raise InputError(
            f"floor is {asked['floor']!r}, but {listed(packed)} hold several layers, of which each "
            "process has parts (fully_shard): use floor=0, or DDP."
        )


def check_alike(
    ranks: Ranks,
    model: nn.Module,
    params: Predicate | None,
    batches: Any,
    asked: Mapping[str, Any],
) -> None:
    """Raise in every process unless all of them ask for the same, of the same model."""
    if ranks.alone:
        return
    facts = _settings(asked)
    replicas = sharing(model) == REPLICATED
    for name, parameter in prunable_parameters(model, params).items():
        values = f", checksum {_checksum(parameter):x}" if replicas else ""
        facts[f"parameter {name!r}"] = f"{tuple(parameter.shape)} {parameter.dtype}{values}"
    # A second pass over the batches must be made by all processes or by none.
    seen = SeenBatches(batches, asked["scoring"].batch_dim)
    facts["batches that can be read again"] = str(seen.can_be_read_again)
    ranks.agree(facts, ALIKE)


def _settings(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What is asked for, as plain values that can be sent and compared whole."""
    scoring, scope = asked["scoring"], asked["scope"]
    facts = {option: value for option, value in asked.items() if option not in ("scoring", "scope")}
    facts |= {"granularity": repr(asked["granularity"])}
    facts |= {f"scoring.{option}": value for option, value in asdict(scoring).items()}
    if isinstance(scope, str):
        return facts | {"scope": scope}
    return facts | {f"scope of {name!r}": float(share) for name, share in scope.items()}


def _checksum(parameter: torch.Tensor) -> int:
    """Of a parameter's bits: replicas that are not alike would be pruned alike, and train apart."""
    bits: Any = parameter.detach().reshape(-1).cpu().view(torch.uint8).numpy()
    return zlib.crc32(bits)


def check_same_masks(ranks: Ranks, masks: Masks) -> None:
    """Raise in every process unless all of them have found the same masks."""
    if not ranks.alone:
        ranks.agree(
            {"checksum of the masks": masks.digest()},
            "Nothing was pruned. The weights, or what the loss computes beside the data, are not "
            "the same in every process.",
        )
