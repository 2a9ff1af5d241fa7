"""Loads the native library with ctypes and hands out its kernels for one instruction set."""

import ctypes
import os
from collections.abc import Callable
from ctypes import c_char_p, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from snip.common.errors import InputError, nearest
from snip.common.machine import __version__
from snip.engine import build
from snip.engine.kernels.border import BorderError, prototypes
from snip.engine.kernels.constants import DONE, NO_MEMORY, NO_THREADS, REFUSED


@dataclass(frozen=True)
class Loaded:
    """The library, and the ctypes prototype of each of its kernels."""

    native: ctypes.CDLL
    prototypes: dict[str, Any]


@cache
def _load() -> Loaded | str:
    """The library, or why there is none."""
    if build.is_unwanted():
        return "SNIP_NO_KERNELS is set"
    path = build.LIBRARY
    if not path.exists():
        return (
            f"{path.name} was not built when snip was installed, which needs a C++ compiler "
            f"(g++ or clang++); with one, {_remedy()}"
        )
    try:
        if not build.is_whole(path):
            raise BorderError("it was not written whole, or changed since")
        native = ctypes.CDLL(str(path))
        _check_origin(native)
        _declare(native)
        made = prototypes((native.snip_declarations() or b"").decode())
    except OSError as error:
        return f"{path.name} cannot be loaded ({error}); {_remedy()}"
    except (AttributeError, BorderError, ValueError, KeyError, IndexError) as error:
        return f"{path.name} does not fit this snip: {error}; {_remedy()}"
    native.snip_use_team(_torch_team())
    return Loaded(native, made)


def _remedy() -> str:
    """The command that builds the library, or advice where there is nothing to build it from."""
    return "run: python -m snip.engine.build" if build.digest() else "install snip again"


def _check_origin(native: ctypes.CDLL) -> None:
    """BorderError unless the library was made of the sources beside it, or for this version."""
    native.snip_origin.restype = c_char_p
    version, digest = native.snip_origin().decode().split()
    wanted = build.digest()
    if wanted is None and version != __version__:
        raise BorderError(f"it was built for version {version}, and this is {__version__}")
    if wanted is not None and digest != wanted:
        raise BorderError(f"it was built from sources {digest}, and those beside it are {wanted}")


def _declare(native: ctypes.CDLL) -> None:
    """Types of the few functions that are not kernels (native/dispatch.cpp and so on)."""
    for name, result, *arguments in (
        ("snip_declarations", c_char_p),
        ("snip_error", c_char_p),
        ("snip_kernel", c_void_p, c_char_p, c_char_p),
        ("snip_prefer_huge_pages", None, c_void_p, c_int64),
        ("snip_scratch_bytes", c_int64),
        ("snip_set_name", c_char_p, c_int32),
        ("snip_set_runs", c_int32, c_char_p),
        ("snip_use_team", None, c_void_p),
        ("snip_vector_floats", c_int32, c_char_p),
    ):
        function = getattr(native, str(name))
        function.restype, function.argtypes = result, arguments


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
    return _loaded().native


def _loaded() -> Loaded:
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
def kernel(name: str) -> Callable[..., int]:
    """A native function of the instruction set in use; it runs without the GIL.

    A size that it refuses raises InputError, memory that is not there MemoryError, and threads that
    cannot be started RuntimeError; the next call works again. On torch's own team of threads there
    is no such error: its library (libgomp) ends the process, with or without us.
    """
    address = library().snip_kernel(instruction_set().encode(), name.encode())
    function = _loaded().prototypes[name](address)
    function.errcheck = check_status
    return function


def kernel_address(name: str) -> int:
    """The same function for native code, which has to call `check_status` itself."""
    return int(library().snip_kernel(instruction_set().encode(), name.encode()))


def check_status(status: int, function: Any = None, arguments: Any = None) -> int:
    """Every call of a kernel ends here."""
    if status == DONE:
        return status
    sentence = library().snip_error().decode(errors="replace")
    if status == REFUSED:
        raise InputError(sentence)
    if status == NO_MEMORY:
        raise MemoryError(f"{sentence}: use a smaller batch, or fewer threads")
    if status == NO_THREADS:
        raise RuntimeError(f"cannot start a thread: {sentence}; use torch.set_num_threads(1)")
    raise RuntimeError(f"a native kernel failed: {sentence}")


def forget_instruction_set() -> None:
    """Read SNIP_KERNELS again at the next call; for tests."""
    instruction_set.cache_clear()
    kernel.cache_clear()


def vector_floats() -> int:
    """Floats per vector of the instruction set in use."""
    return int(library().snip_vector_floats(instruction_set().encode()))
