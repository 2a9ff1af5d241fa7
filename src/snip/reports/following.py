"""Follow the paths of a network for its report, as far as its forward lets itself be followed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from snip.masks import Masks, empty_layers
from snip.network.calls import arguments
from snip.network.network import Network
from snip.paths.connectivity import Connectivity, connectivity, example_input
from snip.paths.reach import cut_inputs, following, unpruned

GIVE_INPUT = "pass inputs=..., an example of what the model takes (snip.prune remembers it)."
GIVE_BATCH = "pass inputs=..., one batch as the model takes it, and "
OWN_WEIGHT = "so a unit counts as dead only if it has no weight of its own"


def followed(model: nn.Module, masks: Masks, inputs: Any, notes: list[str]) -> Connectivity:
    """What a probe finds; a note says what it does not find, and why."""
    asked = masks.provenance
    if inputs is None and asked.input_shape is None:
        notes.append(f"Paths were not followed, {OWN_WEIGHT}: {GIVE_INPUT}")
        return Connectivity(reason="no input")
    given = inputs is not None
    if not given:
        inputs = example_input(model, asked.input_shape or (), asked.input_dtype or "float32")
    found = connectivity(model, masks, inputs, asked.batch_dim or 0)
    empty = bool(empty_layers(masks, Network.of(model).packed))
    if found.reason is not None or (empty and found.connected):
        found = _followed_forwards(model, masks, inputs, found)
    if found.reason is not None:
        fix = f"{'' if given else GIVE_BATCH}let its forward compute with torch's functions"
        notes.append(
            f"Paths could not be followed back through this model ({found.reason}), {OWN_WEIGHT}"
            + (": " + fix + " on what it is given." if found.reached is None else ".")
        )
    return found


def _followed_forwards(
    model: nn.Module, masks: Masks, inputs: Any, found: Connectivity
) -> Connectivity:
    """`found` with what a forward pass tells: inputs that are cut off, and how many outputs."""
    call = arguments(model, inputs)
    with following(model, call, masks.provenance.batch_dim or 0) as follow:
        pruned, whole = follow(masks), follow(unpruned(masks))
        if pruned is None or whole is None or not whole.reached:
            return found
        if found.reason is not None:
            reached = pruned.reached, whole.reached
            found = replace(found, reached=reached, connected=bool(pruned.reached))
        cut = cut_inputs(follow, model, call, masks) if pruned.reached else []
        return replace(found, cut_inputs=tuple(cut))
