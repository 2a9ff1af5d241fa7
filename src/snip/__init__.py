"""Prune a PyTorch network once, before training (SNIP, ICLR 2019).

    masks = snip.prune(model, batch, sparsity=0.95)
    ...  # train exactly as before

The stages are public too: `connection_sensitivity` -> `select` -> `Masks.apply` -> `report`.
"""

from snip import compact
from snip.engine.accelerate import accelerate, densify
from snip.errors import FileError, InputError, KindError, SnipWarning
from snip.export import export_onnx
from snip.initializers import initialize
from snip.masks import Masks, held_masks, release
from snip.parameters import left_out, prunable_parameters
from snip.prune import prune
from snip.report import Report, report
from snip.selection import select
from snip.sensitivity import connection_sensitivity, normalize
from snip.shrink import ShrinkReport, shrink, shrink_report
from snip.training.step import training_step
from snip.version import __version__

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
