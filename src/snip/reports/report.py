"""Say what happened: what the masks left of a network, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import torch
from torch import nn

from snip.common.checks import check_kinds
from snip.common.errors import InputError
from snip.distributed.models import require_whole
from snip.masks import Masks, held_masks
from snip.network.calls import arguments
from snip.network.network import Network
from snip.network.parameters import ordinary
from snip.network.reader import look
from snip.reports.findings import warnings_of
from snip.reports.following import GIVE_INPUT, followed, note_on
from snip.reports.granularity import granularity_note
from snip.reports.rows import Row, rows_of
from snip.selection.costs import flops_per_element


@dataclass(frozen=True)
class Report:
    """What was kept, what it costs, what is dead. Prints as a table; `to_dict()` for code."""

    model: str
    rows: tuple[Row, ...]
    left_out: dict[str, str] = field(default_factory=dict)  # parameter -> reason
    left_out_sizes: dict[str, int] = field(default_factory=dict)  # parameter -> its elements
    flops_left_out: float = 0.0  # FLOPs per sample of weights that were not up for pruning
    outputs: int | None = None
    dead_outputs: tuple[int, ...] = ()
    zero_biases: int | None = None  # of those up for pruning; None: not known
    granularity: str | None = None  # what was kept or removed whole
    granularity_note: str = ""  # what that gives
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def kept(self) -> int:
        return sum(row.kept for row in self.rows)

    @property
    def total(self) -> int:
        return sum(row.total for row in self.rows)

    @property
    def sparsity(self) -> float:
        """The fraction removed: the nominal sparsity."""
        return 1 - self.kept / self.total if self.total else 0.0

    @property
    def parameters(self) -> int:
        """All parameters of the model, also those that were not up for pruning."""
        return self.total + sum(self.left_out_sizes.values())

    @property
    def parameters_left(self) -> int:
        """The parameters of the model without those that were pruned."""
        return self.kept + sum(self.left_out_sizes.values())

    @property
    def model_sparsity(self) -> float:
        """The fraction removed of all parameters of the model."""
        return 1 - self.parameters_left / self.parameters if self.parameters else 0.0

    @property
    def effective_kept(self) -> int | None:
        """Kept connections that lie on a path from input to output."""
        missing = [row.unconnected for row in self.rows]
        return None if None in missing else self.kept - sum(n or 0 for n in missing)

    @property
    def effective_sparsity(self) -> float | None:
        """The sparsity if connections that lead nowhere were removed too."""
        kept = self.effective_kept
        return None if kept is None or not self.total else 1 - kept / self.total

    @property
    def flops_before(self) -> float | None:
        return self._flops([row.flops_before for row in self.rows])

    @property
    def flops_after(self) -> float | None:
        return self._flops([row.flops_after for row in self.rows])

    @property
    def flops_ratio(self) -> float | None:
        """FLOPs after over FLOPs before."""
        before, after = self.flops_before, self.flops_after
        return None if before is None or after is None or not before else after / before

    def _flops(self, parts: list[float | None]) -> float | None:
        known = [part for part in parts if part is not None]
        return sum(known) + self.flops_left_out if known else None

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, strings, lists and dicts, ready for JSON."""
        totals = (
            "kept total sparsity parameters parameters_left model_sparsity "
            "effective_kept effective_sparsity flops_before flops_after flops_ratio"
        )
        rows = [
            asdict(row) | {"shape": list(row.shape), "density": row.density} for row in self.rows
        ]
        own = {"model": self.model} | {name: getattr(self, name) for name in totals.split()}
        rest = asdict(self) | {"rows": rows}
        lists = ("dead_outputs", "warnings", "notes")
        return own | rest | {name: list(rest[name]) for name in lists}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Report:
        """The inverse of `to_dict`; values of the wrong kind are refused."""
        # Sums are computed anew, and a field that only another version knows is left out.
        own = {f.name: data[f.name] for f in fields(cls) if f.name in data}
        lists = {name: tuple(own.get(name, ())) for name in ("dead_outputs", "warnings", "notes")}
        found = cls(**own | lists | {"rows": tuple(map(Row.from_dict, data["rows"]))})
        check_kinds(found, "a report")
        if found.left_out.keys() != found.left_out_sizes.keys():
            raise InputError("a report leaves out other parameters than it has sizes of.")
        return found

    def __repr__(self) -> str:
        from snip.reports.text import as_line

        return as_line(self)

    def __str__(self) -> str:
        from snip.reports.text import as_text

        return as_text(self)

    def __rich_console__(self, console: Any, options: Any) -> Any:
        from snip.reports.text import as_rich

        return as_rich(self, console, options)

    def _repr_html_(self) -> str:
        from snip.reports.html import as_html

        return as_html(self)


def report(
    model: nn.Module, masks: Mapping[str, torch.Tensor] | None = None, *, inputs: Any = None
) -> Report:
    """What `masks` (default: those the model holds) leave of `model`; the model is left as found.

    `inputs` is an example of what the model takes (a tensor, a tuple, a dict, or a batch): it is
    needed for FLOPs and paths unless the masks come from `snip.prune`, which remembers both.
    """
    require_whole(model, "snip.report")
    model = ordinary(model)
    masks = _masks_of(model, masks)
    used = _uses(model, masks, inputs)
    paths, cut = followed(model, masks, inputs)
    no_flops = None if used or inputs is not None else f"FLOPs are not known: {GIVE_INPUT}"
    notes = (no_flops, note_on(paths, given=inputs is not None))
    out = _left_out(model, masks)
    return Report(
        model=type(model).__name__,
        rows=rows_of(model, masks, used, paths),
        left_out=out,
        left_out_sizes={name: model.get_parameter(name).numel() for name in out},
        flops_left_out=_flops_left_out(model, masks, used),
        outputs=paths.outputs,
        dead_outputs=paths.dead_outputs,
        zero_biases=masks.provenance.zero_biases,
        granularity=masks.provenance.granularity,
        granularity_note=granularity_note(model, masks),
        warnings=warnings_of(model, masks, paths, cut),
        notes=tuple(filter(None, notes)),
    )


def _masks_of(model: nn.Module, masks: Mapping[str, torch.Tensor] | None) -> Masks:
    found = held_masks(model) if masks is None else masks
    if found is None:
        raise InputError(
            f"this {type(model).__name__} holds no masks: prune it with snip.prune(model, ...), "
            "or pass masks=..."
        )
    found = found if isinstance(found, Masks) else Masks(found)
    found.check_fit(model)
    order = [name for name, _ in model.named_parameters() if name in found]
    return Masks({name: found[name] for name in order}, found.provenance)


def _uses(model: nn.Module, masks: Masks, inputs: Any) -> Mapping[str, float]:
    if inputs is not None:
        try:
            return look(model, arguments(model, inputs)).uses
        except Exception as error:  # a user's forward may raise anything
            raise InputError(
                f"{type(model).__name__} does not run on inputs=...: {error}. "
                "Pass what you would pass to the model itself."
            ) from error
    return masks.provenance.uses


def _flops_left_out(model: nn.Module, masks: Masks, used: Mapping[str, float]) -> float:
    return sum(
        parameter.numel() * flops_per_element(parameter.shape, used[name])
        for name, parameter in model.named_parameters()
        if name in used and name not in masks
    )


def _left_out(model: nn.Module, masks: Masks) -> dict[str, str]:
    reasons = masks.provenance.left_out or Network.of(model).left_out
    return {
        name: reasons.get(name, "not in these masks")
        for name, _ in model.named_parameters()
        if name not in masks
    }
