"""One sentence of a report about the granularity of its masks."""

from __future__ import annotations

from torch import nn

from snip.common.errors import InputError
from snip.common.text import listed
from snip.masks import Masks
from snip.network.layout import is_weight
from snip.network.network import Network
from snip.selection.granularity import Block, Channel, NofM, checked_granularity

SEMI_STRUCTURED = "2:4"  # the one that torch.sparse.to_sparse_semi_structured takes


def granularity_note(model: nn.Module, masks: Masks) -> str:
    """Count the groups kept and say what uses them; empty for single connections."""
    try:
        granularity = checked_granularity(masks.provenance.granularity or "element")
    except InputError:  # a file of another version may name one that this version does not know
        return ""
    if isinstance(granularity, Channel):
        return _of_channels(model, masks)
    granularity = granularity.on(model, None)
    if isinstance(granularity, NofM):
        return _of_inputs(granularity, masks)
    return _of_blocks(granularity, masks) if isinstance(granularity, Block) else ""


def _of_channels(model: nn.Module, masks: Masks) -> str:
    if masks.provenance.shrunk_from:
        return "Granularity channel: the units that went are cut out already."
    outputs = [live.outputs for live in Network.of(model).live_units(masks).values()]
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
