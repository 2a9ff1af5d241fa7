"""Prune a PyTorch network once, before training (SNIP, ICLR 2019).

    masks = snip.prune(model, batch, sparsity=0.95)
    ...  # train exactly as before

The stages are public too: `connection_sensitivity` -> `select` -> `Masks.apply` -> `report`.
"""

from typing import Any

# The public names by the module that has them, which is imported when one of its names is first
# used, so that `import snip` and `snip --help` need not wait for torch. Type checkers and editors
# read the same names in __init__.pyi.
_MODULES = {
    "snip.algorithm": ("prune",),
    "snip.network.network": ("prunable_parameters",),
    "snip.common.errors": ("FileError", "InputError", "KindError", "RankError", "SnipWarning"),
    "snip.common.machine": ("__version__",),
    "snip.engine.accelerate": ("accelerate", "densify"),
    "snip.engine.fused.step": ("training_step",),
    "snip.export": ("compact",),
    "snip.export.onnx": ("export_onnx",),
    "snip.export.shrink": ("shrink", "shrink_report"),
    "snip.masks": ("Masks", "held_masks", "release"),
    "snip.methods.sensitivity": ("connection_sensitivity",),
    "snip.models.initializers": ("initialize",),
    "snip.reports.report": ("Report", "report"),
    "snip.scoring.settings": ("Scoring",),
    "snip.selection.granularity": ("Block", "Channel", "Element", "NofM"),
    "snip.selection.select": ("select",),
    "snip.training.config": ("TrainConfig",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'snip' has no attribute {name!r}")
    # With a list of names Python also finds one that is a module itself.
    globals()[name] = found = getattr(__import__(_HOMES[name], fromlist=[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
