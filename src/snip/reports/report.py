"""Say what the masks left of a network, layer by layer: counts, costs, paths, warnings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import torch
from torch import nn

from snip.common.checks import check_kinds
from snip.common.errors import InputError
from snip.common.text import listed
from snip.distributed.wrapped import require_whole
from snip.masks import Masks, empty_layers, held_masks
from snip.network.calls import arguments
from snip.network.layout import LiveUnits, is_weight
from snip.network.network import Network
from snip.network.parameters import ordinary
from snip.network.paths import Follower, Paths, example_input
from snip.network.reader import look
from snip.selection.budgets import OWN
from snip.selection.costs import flops_per_element
from snip.selection.granularity import Block, Channel, NofM, checked_granularity

GIVE_INPUT = "pass inputs=..., an example of what the model takes (snip.prune remembers it)."
GIVE_BATCH = "pass inputs=..., one batch as the model takes it, and "
OWN_WEIGHT = "so a unit counts as dead only if it has no weight of its own"
ENOUGH = 0.3  # of what a layer would keep if all were equally sparse: a floor to name
SEMI_STRUCTURED = "2:4"  # the one that torch.sparse.to_sparse_semi_structured takes


@dataclass(frozen=True)
class Row:
    """One pruned parameter. None: not known, see the report's notes."""

    name: str
    shape: tuple[int, ...]
    kept: int
    total: int
    flops_before: float | None = None  # per sample
    flops_after: float | None = None
    units: int | None = None  # neurons, channels, hidden units that this weight feeds
    dead_units: int | None = None  # those without a live connection
    unconnected: int | None = None  # kept, but on no path from input to output

    @property
    def density(self) -> float:
        """The fraction kept."""
        return self.kept / self.total if self.total else 0.0

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Row:
        """A row as `Report.to_dict` writes it; values of the wrong kind are refused."""
        known = {f.name: data[f.name] for f in fields(cls) if f.name in data}
        row = cls(**known | {"shape": tuple(data["shape"])})
        check_kinds(row, "a row of a report")
        if not 0 <= row.kept <= row.total:
            raise InputError(f"a row of a report keeps {row.kept:,} of {row.total:,} connections.")
        return row


def _rows(
    network: Network, masks: Masks, used: Mapping[str, float], paths: Paths
) -> tuple[Row, ...]:
    """One row per mask, in the order of the masks."""
    live = network.live_units(paths.effective or masks)
    # The recurrent weights feed the units that the input weights have counted.
    facts = network.parameters
    counted = {name: x for name, x in live.items() if not facts[name].key.startswith("weight_hh")}
    return tuple(_row(name, mask, used, paths, counted.get(name)) for name, mask in masks.items())


def _row(
    name: str,
    mask: torch.Tensor,
    used: Mapping[str, float],
    paths: Paths,
    units: LiveUnits | None,
) -> Row:
    kept, total = int(mask.count_nonzero()), mask.numel()
    each = flops_per_element(mask.shape, used[name]) if name in used else None
    effective = (paths.effective or {}).get(name)
    return Row(
        name=name,
        shape=tuple(mask.shape),
        kept=kept,
        total=total,
        flops_before=None if each is None else each * total,
        flops_after=None if each is None else each * kept,
        units=None if units is None else units.outputs.numel(),
        dead_units=None if units is None else int((~units.outputs).sum()),
        unconnected=None if effective is None else kept - int(effective.sum()),
    )


@dataclass(frozen=True)
class Report:
    """Counts, costs and dead units of a pruned model. Prints as a table; `to_dict()` for code."""

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
        from snip.reports.text import as_html

        return as_html(self)


def report(
    model: nn.Module, masks: Mapping[str, torch.Tensor] | None = None, *, inputs: Any = None
) -> Report:
    """Report what `masks` (default: those it holds) leave of `model`, which is left as found.

    `inputs` is an example of what the model takes (a tensor, a tuple, a dict, or a batch): it is
    needed for FLOPs and paths unless the masks come from `snip.prune`, which remembers both.
    """
    require_whole(model, "snip.report")
    network = Network.of(ordinary(model))
    masks = _masks_of(network, masks)
    used = _uses(network, masks, inputs)
    paths, cut = _followed(network, masks, inputs)
    no_flops = None if used or inputs is not None else f"FLOPs are not known: {GIVE_INPUT}"
    notes = (no_flops, _note_on(paths, given=inputs is not None))
    out = _left_out(network, masks)
    return Report(
        model=type(network.module).__name__,
        rows=_rows(network, masks, used, paths),
        left_out=out,
        left_out_sizes={name: network.parameters[name].tensor.numel() for name in out},
        flops_left_out=_flops_left_out(network, masks, used),
        outputs=paths.outputs,
        dead_outputs=paths.dead_outputs,
        zero_biases=masks.provenance.zero_biases,
        granularity=masks.provenance.granularity,
        granularity_note=_granularity_note(network, masks),
        warnings=_warnings(network, masks, paths, cut),
        notes=tuple(filter(None, notes)),
    )


def _masks_of(network: Network, masks: Mapping[str, torch.Tensor] | None) -> Masks:
    found = held_masks(network.module) if masks is None else masks
    if found is None:
        raise InputError(
            f"this {type(network.module).__name__} holds no masks: prune it with "
            "snip.prune(model, ...), or pass masks=..."
        )
    found = found if isinstance(found, Masks) else Masks(found)
    found.check_fit(network.module)
    order = [name for name in network.parameters if name in found]
    return Masks({name: found[name] for name in order}, found.provenance)


def _uses(network: Network, masks: Masks, inputs: Any) -> Mapping[str, float]:
    if inputs is not None:
        try:
            return look(network.module, arguments(network.module, inputs)).uses
        except Exception as error:  # a user's forward may raise anything
            raise InputError(
                f"{type(network.module).__name__} does not run on inputs=...: {error}. "
                "Pass what you would pass to the model itself."
            ) from error
    return masks.provenance.uses


def _flops_left_out(network: Network, masks: Masks, used: Mapping[str, float]) -> float:
    return sum(
        fact.tensor.numel() * flops_per_element(fact.tensor.shape, used[name])
        for name, fact in network.parameters.items()
        if name in used and name not in masks
    )


def _left_out(network: Network, masks: Masks) -> dict[str, str]:
    reasons = masks.provenance.left_out or network.left_out
    return {
        name: reasons.get(name, "not in these masks")
        for name in network.parameters
        if name not in masks
    }


def _followed(network: Network, masks: Masks, inputs: Any) -> tuple[Paths, list[str]]:
    """The paths, and the arguments of the call that are cut off from every output."""
    asked = masks.provenance
    if inputs is None and asked.input_shape is None:
        return Paths(), []
    if inputs is None:
        shape, dtype = asked.input_shape or (), asked.input_dtype or "float32"
        inputs = example_input(network.module, shape, dtype)
    call = arguments(network.module, inputs)
    with Follower(network.module, call, asked.batch_dim or 0) as follower:
        paths = follower.paths(masks)
        empty = paths.connected and empty_layers(masks, network.packed)
        return paths, follower.cut_inputs(masks) if empty else []


def _note_on(paths: Paths, *, given: bool) -> str | None:
    """The reason why paths are not known, and what to do; `given`: an input was passed."""
    if paths.effective is not None:
        return None
    if paths.why_not is None:
        return f"Paths were not followed, {OWN_WEIGHT}: {GIVE_INPUT}"
    return (
        f"Paths could not be followed through this model ({paths.why_not}), {OWN_WEIGHT}: "
        f"{'' if given else GIVE_BATCH}let its forward compute with torch's functions on what it "
        "is given."
    )


def _warnings(network: Network, masks: Masks, paths: Paths, cut: Sequence[str]) -> tuple[str, ...]:
    """Collapse, empty layers, dead outputs, masks that are not applied; worst first."""
    fix = _fix(masks)
    return tuple(
        [
            *_collapse(paths, fix),
            *_empty_layers(network, masks, cut, bool(paths.connected), fix),
            *_dead_outputs(paths, fix),
            *_not_applied(network, masks),
        ]
    )


def _fix(masks: Masks) -> str:
    """Suggest a setting. Only `prune` has the scores to try it."""
    asked = masks.provenance
    if asked.scope == OWN:
        return "prune again with a lower sparsity or by another method"
    if asked.budget == "flops":
        return "prune again with a lower sparsity or with budget='connections'"
    if asked.scope == "global":  # floor="auto" may have been asked for, and have found no cure
        floor = float(f"{ENOUGH * (1 - masks.sparsity):.1g}")
        higher = floor if floor > (asked.floor or 0) else 2 * (asked.floor or 0)
        return f"prune again with floor={higher:g}, with scope='erk' or with a lower sparsity"
    return (
        "prune again with scope='global' and floor='auto', which tries cures and says what works, "
        "or with a floor=... of your own"
    )


def _collapse(paths: Paths, fix: str) -> Iterator[str]:
    if paths.connected is False:
        yield (
            "no path leads from the input to the output: the network computes a constant and "
            f"cannot learn. To repair it, {fix}."
        )


def _empty_layers(
    network: Network, masks: Masks, cut: Sequence[str], bypassed: bool, fix: str
) -> Iterator[str]:
    empty = empty_layers(masks, network.packed)
    if empty:
        how = "the signal passes by another way" if bypassed else "the signal may end there"
        if cut:
            many = "s" * (len(cut) > 1)
            how = f"nothing of the input{many} {listed(cut)} reaches the output"
        yield f"nothing is left of {listed(empty)}: {how}. To keep some of it, {fix}."


def _dead_outputs(paths: Paths, fix: str) -> Iterator[str]:
    if paths.connected and paths.dead_outputs:
        many = len(paths.dead_outputs) > 1
        yield (
            f"output{'s' * many} {listed(paths.dead_outputs)} of {paths.outputs} "
            f"{'are' if many else 'is'} not reached by any input and can only be a constant: "
            f"if it is a class, it cannot be told apart. To repair it, {fix}."
        )


def _not_applied(network: Network, masks: Mapping[str, torch.Tensor]) -> Iterator[str]:
    alive = {
        name: int(fact.tensor.detach()[~masks[name].to(fact.tensor.device)].count_nonzero())
        for name, fact in network.parameters.items()
        if name in masks
    }
    names = [name for name, count in alive.items() if count]
    if names:
        yield (
            f"{sum(alive.values()):,} pruned weights of {listed(names)} are not zero in this "
            "model: call masks.apply(model) to prune it."
        )


def _granularity_note(network: Network, masks: Masks) -> str:
    """Count the groups kept and say what uses them; empty for single connections."""
    try:
        granularity = checked_granularity(masks.provenance.granularity or "element")
    except InputError:  # a file of another version may name one that this version does not know
        return ""
    if isinstance(granularity, Channel):
        return _of_channels(network, masks)
    granularity = granularity.on(network.module, None)
    if isinstance(granularity, NofM):
        return _of_inputs(granularity, masks)
    return _of_blocks(granularity, masks) if isinstance(granularity, Block) else ""


def _of_channels(network: Network, masks: Masks) -> str:
    if masks.provenance.shrunk_from:
        return "Granularity channel: the units that went are cut out already."
    outputs = [live.outputs for live in network.live_units(masks).values()]
    total, kept = sum(x.numel() for x in outputs), sum(int(x.sum()) for x in outputs)
    return (
        f"Granularity channel: {kept:,} of {total:,} units kept; snip.shrink(model, batch) takes "
        "the others out, which leaves an ordinary smaller network."
    )


def _of_inputs(pattern: NofM, masks: Masks) -> str:
    weights = [name for name, mask in masks.items() if is_weight(mask.shape)]
    whole = [name for name in weights if not pattern.applies_to(name, masks[name])]
    note = f"Granularity {pattern}: {len(weights) - len(whole)} of {len(weights)} weights follow it"
    note += f", {listed(whole)} cannot" if whole else ""
    if str(pattern) == SEMI_STRUCTURED:
        note += "; torch.sparse.to_sparse_semi_structured takes linear ones on a GPU"
    return f"{note}."


def _of_blocks(block: Block, masks: Masks) -> str:
    counts = [block.sums(name, mask) for name, mask in masks.items()]
    kept = sum(int(count.count_nonzero()) for count in counts)
    return f"Granularity {block}: {kept:,} of {sum(c.numel() for c in counts):,} blocks kept."
