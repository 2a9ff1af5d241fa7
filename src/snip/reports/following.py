"""Follow paths for the report; say what could not be followed, and why."""

from __future__ import annotations

from typing import Any

from torch import nn

from snip.masks import Masks, empty_layers
from snip.network.calls import arguments
from snip.network.network import Network
from snip.network.paths import Follower, Paths, example_input

GIVE_INPUT = "pass inputs=..., an example of what the model takes (snip.prune remembers it)."
GIVE_BATCH = "pass inputs=..., one batch as the model takes it, and "
OWN_WEIGHT = "so a unit counts as dead only if it has no weight of its own"


def followed(model: nn.Module, masks: Masks, inputs: Any) -> tuple[Paths, list[str]]:
    """The paths, and the arguments of the call that are cut off from every output."""
    asked = masks.provenance
    if inputs is None and asked.input_shape is None:
        return Paths(), []
    if inputs is None:
        inputs = example_input(model, asked.input_shape or (), asked.input_dtype or "float32")
    with Follower(model, arguments(model, inputs), asked.batch_dim or 0) as follower:
        paths = follower.paths(masks)
        empty = paths.connected and empty_layers(masks, Network.of(model).packed)
        return paths, follower.cut_inputs(masks) if empty else []


def note_on(paths: Paths, *, given: bool) -> str | None:
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
