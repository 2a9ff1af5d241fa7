"""Algorithm 1, whole: score, select, zero, keep zero."""

from __future__ import annotations

import platform
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from snip.anatomy.calling import first_tensor
from snip.anatomy.parameters import (
    PARAMETRIZED,
    Predicate,
    is_sharded,
    left_out,
    ordinary,
    require_prunable,
    unwrap,
)
from snip.common.errors import InputError, KindError, SnipWarning, listed, nearest
from snip.common.version import __version__
from snip.masks import Masks, empty_layers, held_masks, holding
from snip.models.initializers import INITIALIZERS, initialize
from snip.scoring.batches import Batch, LossFn, as_batches, batch_size, cross_entropy
from snip.scoring.sensitivity import Scores, connection_sensitivity
from snip.selection.budgets import Scope, check_scope, checked_sparsity, kept_count
from snip.selection.costs import count_uses, element_flops
from snip.selection.select import select

BUDGETS = ("connections", "flops")
Redraw = str | Callable[[nn.Module], object]


def prune(
    model: nn.Module,
    batches: Any,
    *,
    sparsity: float,
    loss_fn: LossFn | None = None,
    params: Predicate | None = None,
    scope: Scope = "global",
    floor: float = 0,
    reduction: str = "abs_of_sum",
    decay: float = 0.9,
    batch_norm: str = "eval",
    loss_reduction: str = "mean",
    batch_dim: int = 0,
    redraw: Redraw | None = None,
    budget: str = "connections",
) -> Masks:
    """Remove all but the round(m (1 - sparsity)) most sensitive connections; returns the masks.

    `batches`: one batch or an iterable of them; `loss_fn(model, batch)` is cross-entropy of an
    (inputs, targets) pair unless given. A tensor, a mapping, or a tuple or list with a tensor in it
    is one batch. `redraw`: None trains the weights that were scored (the
    paper's text); an initialiser's name or a function that re-initialises the model trains
    another draw under the same masks (the authors' code). `budget="flops"` keeps the most
    sensitivity per FLOP: `sparsity` is then the fraction of the FLOPs that is saved. A model that
    is pruned already is pruned further.
    """
    if budget not in BUDGETS:
        raise nearest("budget", budget, BUDGETS)
    sparsity = checked_sparsity(sparsity)
    chosen = require_prunable(ordinary(model), params)
    _check_budget(model, chosen, sparsity)
    _check_redraw(redraw)
    check_scope(scope)
    seen = _Seen(as_batches(batches), batch_dim)
    with count_uses(unwrap(model)) as counter:
        scores = connection_sensitivity(
            model,
            seen,
            loss_fn,
            params=params,
            reduction=reduction,
            decay=decay,
            batch_norm=batch_norm,
            loss_reduction=loss_reduction,
            batch_dim=batch_dim,
        )
    _check_gradients(scores)
    _warn_of_parametrized(model, params)
    costs = element_flops(scores, counter.uses) if budget == "flops" else None
    masks = select(
        scores,
        sparsity=sparsity,
        scope=scope,
        floor=floor,
        within=held_masks(model),
        costs=costs,
    )
    masks.provenance |= {
        "kept": masks.kept,
        "total": masks.total,
        "floor": float(floor),
        "budget": budget,
        "reduction": reduction,
        "decay": decay,
        "batch_norm": batch_norm,
        "loss": _name_of(loss_fn or cross_entropy),
        "loss_reduction": loss_reduction,
        "protocol": "train-scored" if redraw is None else "redraw",
        "redraw": None if redraw is None else _name_of(redraw),
        "uses": counter.uses,
        "left_out": left_out(model, params),
    } | seen.provenance()
    _warn_of_empty_layers(masks)
    if redraw is not None:  # before anything is pruned, in case the user's function fails
        _draw_again(model, redraw)
    masks.apply(model)
    return masks


def versions() -> dict[str, str]:
    """What made a result, for its provenance."""
    return {
        "snip": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }


class _Seen:
    """Batches on their way through, with a note of how many there were and of what shape."""

    def __init__(self, batches: Any, batch_dim: int) -> None:
        self.batches, self.batch_dim = batches, batch_dim
        self.count = self.samples = 0
        self.first: torch.Tensor | None = None

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.batches:
            self.count += 1
            self.samples += batch_size(batch, self.batch_dim)
            self.first = first_tensor(batch) if self.first is None else self.first
            yield batch

    def __len__(self) -> int:
        return len(self.batches)

    def provenance(self) -> dict[str, Any]:
        note: dict[str, Any] = {
            "method": "snip",
            "batches": self.count,
            "samples": self.samples,
            "seed": torch.initial_seed(),
            "versions": versions(),
        }
        if self.first is not None:
            note["input_shape"] = list(self.first.shape[1:])
            note["batch_dim"] = self.batch_dim
            note["input_dtype"] = str(self.first.dtype).removeprefix("torch.")
        return note


def _check_budget(model: nn.Module, chosen: Mapping[str, nn.Parameter], sparsity: float) -> None:
    total = sum(parameter.numel() for parameter in chosen.values())
    if kept_count(total, sparsity) == 0:
        raise InputError(
            f"sparsity {sparsity!r} keeps 0 of {total:,} connections: nothing would be left to "
            f"train. {1 - 1 / total!r} keeps one."
        )
    sharded = next((name for name, p in chosen.items() if is_sharded(p)), None)
    if sharded is not None:
        raise InputError(
            f"{sharded!r} is sharded over processes (FSDP or DTensor), which is not supported: "
            "prune before sharding and use DDP, or train on one process."
        )
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise InputError(
            "the model is wrapped in DistributedDataParallel: each process would score its own "
            "batch and choose other masks. Prune before wrapping, on the same batch everywhere, "
            "or prune in one process and masks.apply(model) in all."
        )


def _check_gradients(scores: Scores) -> None:
    weights = [score for score in scores.values() if score.ndim > 1]
    if not any(score.any() for score in weights or scores.values()):
        raise InputError(
            "every connection sensitivity is zero: no weight moves the loss, so there is nothing "
            "to rank. Are all weights or all gradients zero? snip.initialize(model) redraws them."
        )
    silent = [name for name, score in scores.items() if score.ndim > 1 and not score.any()]
    if silent:
        warnings.warn(
            f"the loss does not feel {listed(silent)}: gradient times weight is zero all over, "
            "so the layer goes first. Is it used in the loss, and is it initialised to non-zero?",
            SnipWarning,
            stacklevel=3,
        )


def _warn_of_parametrized(model: nn.Module, params: Predicate | None) -> None:
    hidden = [name for name, reason in left_out(model, params).items() if reason == PARAMETRIZED]
    if hidden:
        warnings.warn(
            f"{listed(hidden)} stay dense: their layers compute the weight from them. Remove the "
            "parametrization before pruning (torch.nn.utils.parametrize.remove_parametrizations).",
            SnipWarning,
            stacklevel=3,
        )


def _warn_of_empty_layers(masks: Masks) -> None:
    empty = empty_layers(masks)
    if empty:
        warnings.warn(
            f"nothing is left of {listed(empty)} at sparsity {masks.sparsity:.4g}: the signal "
            "ends there unless a shortcut passes it by. Use floor=..., another scope "
            "('erk', 'layer'), more scoring data, or a lower sparsity.",
            SnipWarning,
            stacklevel=3,
        )


def _check_redraw(redraw: Redraw | None) -> None:
    if isinstance(redraw, str) and redraw not in INITIALIZERS:
        raise nearest("initializer", redraw, INITIALIZERS)
    if redraw is not None and not isinstance(redraw, str) and not callable(redraw):
        raise KindError(f"redraw is {redraw!r}: give an initialiser's name or a function of model.")


def _draw_again(model: nn.Module, redraw: Redraw) -> None:
    if isinstance(redraw, str):
        initialize(unwrap(model), redraw)
        return
    with torch.no_grad():
        redraw(unwrap(model))
    # The user's function may have put new parameters in place of some that were held.
    holding.rebind(unwrap(model))


def _name_of(value: object) -> str:
    return value if isinstance(value, str) else getattr(value, "__qualname__", "custom")
