"""Loads the native library with ctypes and hands out its kernels for one instruction set."""

import ctypes
import os
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_double, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import torch

from snip.common.errors import InputError, nearest
from snip.engine import build
from snip.engine.kernels.plan import ConvPlanStruct

P, N, L, D = c_void_p, c_int32, c_int64, c_double
PLAN = POINTER(ConvPlanStruct)

# Arguments of each kernel, in the order of native/*.hpp.
SIGNATURES: dict[str, list[Any]] = {
    "linear_forward": [P, P, P, P, P, L, P, P, L, L, L, N, N],
    "linear_backward": [P, P, P, P, P, P, P, L, P, L, P, L, P, L, P, P, L, L, L, N],
    "conv_forward": [PLAN, P, P, P, P, P, L, N, N],
    "conv_weights": [PLAN, P, P, P, L, N],
    "winograd_weights": [P, P, L, L, N, N],
    "winograd_forward": [P, P, P, P, P, P, N, N],
    "transpose": [P, L, P, L, L, L, N],
    "rows_to_blocks": [P, P, L, L, L, N],
    "blocks_to_rows": [P, P, L, L, L, N],
    "blocks_to_columns": [P, P, L, L, L, L, N],
    "columns_to_blocks": [P, L, P, L, L, L, N],
    "norm_train": [P, P, P, P, P, P, L, L, L, L, D, N, N],
    "norm_apply": [P, P, P, P, L, L, L, L, N, N],
    "norm_backward": [P, P, P, P, P, P, P, P, P, L, L, L, L, D, N, N, N],
    "max_pool": [P, P, P, P, L, L, N],
    "max_pool_backward": [P, P, P, P, L, L, N],
    "relu_backward": [P, P, P, P, L, L, L, L, N],
    "lstm_forward": [P, P, P, P, L, P, L, P, L, L, L, L, N],
    "lstm_backward": [P, P, P, P, P, P, L, P, L, P, L, P, P, L, L, L, L, N],
    "gru_forward": [P, P, P, P, P, P, L, P, L, L, L, L, N],
    "gru_backward": [P, P, P, P, P, P, P, P, L, P, L, P, L, P, L, L, L, L, N],
    "network_forward": [P, P, P, L, N],
    "network_gradients": [P, P, P, P, P, L, N],
    "sgd_update": [P, L, P],
}


@cache
def _load() -> ctypes.CDLL | str:
    """The library, or why there is none."""
    path = build.LIBRARY
    if not path.exists():
        return (
            f"{path.name} was not built when snip was installed, which needs a C++ compiler "
            "(g++ or clang++); with one, run: python -m snip.engine.build"
        )
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        return f"{path.name} cannot be loaded: {error}"
    library.snip_kernel.restype = c_void_p
    library.snip_kernel.argtypes = [c_char_p, c_char_p]
    library.snip_set_name.restype = c_char_p
    library.snip_use_team.argtypes = [c_void_p]
    library.snip_prefer_huge_pages.argtypes = [c_void_p, c_int64]
    library.snip_use_team(_torch_team())
    return library


def share_torch_threads(share: bool) -> None:
    """Run on torch's own OpenMP threads (the default where found), or on a pool that sleeps."""
    library().snip_use_team(_torch_team() if share else None)


def _torch_team() -> int | None:
    """Address of GOMP_parallel in the OpenMP runtime that torch has loaded, if there is one."""
    for path in sorted((Path(torch.__file__).parent / "lib").glob("lib*omp*.so*")):
        try:
            # NOLOAD: only a copy that torch itself is using will do.
            runtime = ctypes.CDLL(str(path), mode=getattr(os, "RTLD_NOLOAD", 0) | os.RTLD_NOW)
            return ctypes.cast(runtime.GOMP_parallel, c_void_p).value
        except (OSError, AttributeError):
            continue
    return None


def available() -> bool:
    """Whether the native kernels can be used; `reason()` says why not."""
    return not isinstance(_load(), str)


def reason() -> str | None:
    """Why the native kernels cannot be used, or None."""
    found = _load()
    return found if isinstance(found, str) else None


def library() -> ctypes.CDLL:
    """The loaded library, or InputError with the reason."""
    found = _load()
    if isinstance(found, str):
        raise InputError(f"the native kernels are not available: {found}")
    return found


@cache
def instruction_sets() -> tuple[str, ...]:
    """Instruction sets that this binary has and this machine runs, best first."""
    lib = library()
    names: list[bytes] = []
    while (name := lib.snip_set_name(len(names))) is not None:
        names.append(name)
    return tuple(name.decode() for name in names if lib.snip_set_runs(name))


@cache
def instruction_set() -> str:
    """The best of them, or the one that the environment variable SNIP_KERNELS names."""
    asked = os.environ.get("SNIP_KERNELS")
    if not asked:
        return instruction_sets()[0]
    if asked not in instruction_sets():
        raise nearest("instruction set (SNIP_KERNELS)", asked, instruction_sets())
    return asked


@cache
def kernel(name: str) -> Callable[..., None]:
    """A native function of the instruction set in use; it runs without the GIL."""
    address = library().snip_kernel(instruction_set().encode(), name.encode())
    return ctypes.CFUNCTYPE(None, *SIGNATURES[name])(address)


def forget_instruction_set() -> None:
    """Read SNIP_KERNELS again at the next call; for tests."""
    instruction_set.cache_clear()
    kernel.cache_clear()


def vector_floats() -> int:
    """Floats per vector of the instruction set in use."""
    return int(library().snip_vector_floats(instruction_set().encode()))


def pointer(tensor: torch.Tensor | None) -> int | None:
    """Address of a tensor's data; None becomes a null pointer."""
    return None if tensor is None else tensor.data_ptr()


HUGE = 4 << 20  # bytes from which a tensor is worth huge pages


def empty(*shape: int) -> torch.Tensor:
    """float32 on the CPU, whatever the default is, in huge pages when it is large.

    (First touching small pages is slow.)
    """
    tensor = torch.empty(shape, dtype=torch.float32, device="cpu")
    if tensor.nbytes >= HUGE:
        library().snip_prefer_huge_pages(tensor.data_ptr(), tensor.nbytes)
    return tensor
