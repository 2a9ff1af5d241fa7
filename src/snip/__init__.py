"""Prune a PyTorch network once, before training (SNIP, ICLR 2019).

    masks = snip.prune(model, batch, sparsity=0.95)
    ...  # train exactly as before

The stages are public too: `connection_sensitivity` -> `select` -> `Masks.apply` -> `report`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from snip.algorithm import prune
    from snip.anatomy.parameters import left_out, prunable_parameters
    from snip.common.errors import FileError, InputError, KindError, SnipWarning
    from snip.common.version import __version__
    from snip.engine.accelerate import accelerate, densify
    from snip.engine.fused.step import training_step
    from snip.export import compact
    from snip.export.onnx import export_onnx
    from snip.export.shrink import ShrinkReport, shrink, shrink_report
    from snip.masks import Masks, held_masks, release
    from snip.models.initializers import initialize
    from snip.reports.report import Report, report
    from snip.scoring.sensitivity import connection_sensitivity, normalize
    from snip.selection.select import select

# A name is imported when it is first used: `snip --help` must not wait for torch.
_HOMES = {
    "FileError": "snip.common.errors",
    "InputError": "snip.common.errors",
    "KindError": "snip.common.errors",
    "Masks": "snip.masks",
    "Report": "snip.reports.report",
    "ShrinkReport": "snip.export.shrink",
    "SnipWarning": "snip.common.errors",
    "__version__": "snip.common.version",
    "accelerate": "snip.engine.accelerate",
    "compact": "snip.export",
    "connection_sensitivity": "snip.scoring.sensitivity",
    "densify": "snip.engine.accelerate",
    "export_onnx": "snip.export.onnx",
    "held_masks": "snip.masks",
    "initialize": "snip.models.initializers",
    "left_out": "snip.anatomy.parameters",
    "normalize": "snip.scoring.sensitivity",
    "prunable_parameters": "snip.anatomy.parameters",
    "prune": "snip.algorithm",
    "release": "snip.masks",
    "report": "snip.reports.report",
    "select": "snip.selection.select",
    "shrink": "snip.export.shrink",
    "shrink_report": "snip.export.shrink",
    "training_step": "snip.engine.fused.step",
}

__all__ = [
    "FileError",
    "InputError",
    "KindError",
    "Masks",
    "Report",
    "ShrinkReport",
    "SnipWarning",
    "__version__",
    "accelerate",
    "compact",
    "connection_sensitivity",
    "densify",
    "export_onnx",
    "held_masks",
    "initialize",
    "left_out",
    "normalize",
    "prunable_parameters",
    "prune",
    "release",
    "report",
    "select",
    "shrink",
    "shrink_report",
    "training_step",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'snip' has no attribute {name!r}")
    home = import_module(_HOMES[name])
    found = getattr(home, name, None)
    # `compact` is a module of its room, not a name in it.
    globals()[name] = found = import_module(f"{_HOMES[name]}.{name}") if found is None else found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
