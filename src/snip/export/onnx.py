"""Export a (shrunk) model to ONNX, for any runtime that reads it."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from snip.common.errors import InputError, warn
from snip.common.files import PathLike, write_with
from snip.common.text import first_line
from snip.distributed.wrapped import require_whole, unwrap
from snip.engine.accelerate import densify
from snip.masks import holding
from snip.network.calls import Call, arguments, doubled
from snip.network.parameters import Accelerated

NEEDED = ("onnx", "onnxscript")


def export_onnx(
    model: nn.Module, inputs: Any, path: PathLike, *, any_batch_size: bool = True
) -> None:
    """Write `model`, in eval mode, as one ONNX file; `inputs` as for `shrink`, or a batch.

    ONNX has no sparse layers: an accelerated network is written as `snip.densify` gives it.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise InputError(
            f"exporting to ONNX needs {' and '.join(missing)}: pip install 'snip-prune[onnx]'."
        )
    require_whole(model, "snip.export_onnx")
    if isinstance(unwrap(model), Accelerated):
        warn(
            "ONNX has no sparse layers: this accelerated network is written as an ordinary one, "
            "and a runtime will compute with its zeros too. snip.shrink(snip.densify(model), batch)"
            " leaves out what can be left out."
        )
    plain = densify(model).eval()  # a copy
    holding.release(plain)
    call = arguments(plain, inputs)
    try:  # of inputs that the model does not take, the exporter would tell in pages of its own
        with torch.no_grad():
            call.run(plain)
    except Exception as error:  # a user's forward may raise anything
        raise InputError(
            f"{type(plain).__name__} does not run on these inputs: {first_line(error)}"
        ) from error
    program = _program(plain, call, any_batch_size)

    def save(path: Path) -> None:
        try:
            program.save(path, external_data=False)
        except (ValueError, RuntimeError) as error:  # protobuf's own, beyond its two gigabytes
            raise InputError(
                f"the network cannot be written as one ONNX file: {first_line(error)} Such a file "
                "has at most 2 GB."
            ) from error

    write_with(path, save)


def _program(model: nn.Module, call: Call, any_batch_size: bool) -> torch.onnx.ONNXProgram:
    shapes = None
    if any_batch_size:
        # torch.export would take a batch size of one for a constant of the model.
        call = call.map(lambda x: doubled(x) if x.ndim and len(x) == 1 else x)
        bound = inspect.signature(model.forward).bind(*call.args, **call.kwargs)
        shapes = {name: pytree.tree_map(_vary, value) for name, value in bound.arguments.items()}
    try:
        with _quiet():
            program = torch.onnx.export(
                model,
                call.args,
                kwargs=call.kwargs,
                dynamic_shapes=shapes,
                dynamo=True,
                verbose=False,
            )
    except Exception as error:  # anything can go wrong inside the user's forward
        hint = " If its first dimension is not the batch, use any_batch_size=False."
        raise InputError(
            f"{type(model).__name__} cannot be exported to ONNX: {first_line(_root(error))}"
            + (hint if any_batch_size else "")
        ) from error
    if program is None:
        raise InputError("torch.onnx gave no program: update torch and onnxscript.")
    return program


def _vary(value: Any) -> Any:
    """Let the first dimension of a tensor vary."""
    is_batched = isinstance(value, torch.Tensor) and value.ndim
    return {0: torch.export.Dim.DYNAMIC} if is_batched else None


def _root(error: BaseException) -> BaseException:
    """Return the first cause of an error: torch.onnx reports its own steps on top of it."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's log and warnings, which are meant for its developers."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
