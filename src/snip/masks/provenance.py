"""The origin of masks: what was asked for, on which data, by which versions."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from snip.common.checks import check_kinds
from snip.common.errors import KindError
from snip.common.machine import __version__


@dataclass(frozen=True)
class Provenance:
    """Origin of masks. Unknown fields are None or empty; the type of every field is checked."""

    method: str | None = None  # a name in snip.methods, or "from_zeros"
    rounds: int | None = None  # number of times the method scored
    control: str | None = None  # a name in snip.methods.controls
    sparsity_asked: float | None = None
    scope: str | dict[str, float] | None = None
    floor: float | None = None
    budget: str | None = None
    granularity: str | None = None  # "element", "channel", "2:4", "4x4"
    # The fields of snip.Scoring.
    reduction: str | None = None
    decay: float | None = None
    batch_norm: str | None = None
    loss_reduction: str | None = None
    batch_dim: int | None = None
    zero_parts: str | None = None
    # The data that was scored.
    loss: str | None = None
    batches: int | None = None
    samples: int | None = None
    input_shape: tuple[int, ...] | None = None  # of one sample
    input_dtype: str | None = None
    # The model that was scored.
    uses: dict[str, float] = field(default_factory=dict)  # of each weight, per sample
    left_out: dict[str, str] = field(default_factory=dict)  # unpruned parameters and the reasons
    zero_biases: int | None = None  # biases up for pruning that were zero, and had no sensitivity
    # A whole run also knows these.
    protocol: str | None = None
    seeds: dict[str, int] = field(default_factory=dict)
    dataset: str | None = None
    model: str | None = None
    weights: str | None = None  # the file that the scored weights were read from
    shrunk_from: dict[str, int] | None = None  # kept and total before snip.shrink
    note: str | None = None  # what was done beside the method's own rule
    seed: int | None = None  # torch's when the scoring began
    versions: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_kinds(self, "a provenance")
        if any(size < 0 for size in self.input_shape or ()):
            raise KindError(f"input_shape of a provenance is {self.input_shape}: it is no shape.")
        if not isinstance(getattr(torch, self.input_dtype or "float32", None), torch.dtype):
            raise KindError(f"input_dtype of a provenance is {self.input_dtype!r}: it is no dtype.")

    def to_dict(self) -> dict[str, Any]:
        """Known fields as JSON writes them."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in vars(self).items()
            if value is not None and value != {}
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Provenance:
        """Read what `to_dict` gave; raise for a value of the wrong type."""
        if not isinstance(data, Mapping):
            raise KindError(f"the provenance is a {type(data).__name__}, not a set of fields.")
        # Skip fields that this version does not know: the meaning of the masks depends on none,
        # and files of other versions stay readable.
        fields = {field.name for field in dataclasses.fields(cls)}
        known = {name: value for name, value in data.items() if name in fields}
        if isinstance(known.get("input_shape"), list):  # JSON has no tuples
            known["input_shape"] = tuple(known["input_shape"])
        return cls(**known)


def versions() -> dict[str, str]:
    """Versions of the software that made a result."""
    return {
        "snip": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }
