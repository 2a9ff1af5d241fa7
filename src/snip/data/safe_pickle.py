"""Read byte arrays out of a pickle without running anything that the pickle asks for."""

from __future__ import annotations

import io
import pickle
import pickletools
from math import prod
from typing import Any

import numpy as np

from snip.common.checks import LARGEST
from snip.common.text import shown

MOST_DIMENSIONS = 4  # of an array of images


def load_arrays(data: bytes) -> Any:
    """The content of a pickle of plain containers; its arrays come as `PickledArray`."""
    try:
        _check_memo(data)
        return _Restricted(io.BytesIO(data), encoding="bytes").load()
    except Exception as error:  # a damaged pickle can raise anything at all
        raise ValueError(str(error) or type(error).__name__) from error


def _check_memo(data: bytes) -> None:
    """Refuse a place in the memo beyond any that is needed: Python makes room for all below it."""
    for code, place, _ in pickletools.genops(data):
        if code.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(place or 0) > len(data):
            raise ValueError(f"it puts something into place {place} of its memo")


class PickledArray:
    """Stands in for numpy's array while a pickle is read: keeps the state, calls nothing."""

    def __init__(self, *_: object) -> None:
        self._state: Any = None

    def __setstate__(self, state: Any) -> None:
        self._state = state

    def numpy(self) -> np.ndarray:
        """The array, if it is one of bytes."""
        if not isinstance(self._state, tuple) or len(self._state) != 5:
            raise ValueError("an array in it has no content")
        _, shape, dtype, fortran, data = self._state
        if not isinstance(dtype, _Dtype) or dtype.kind not in (b"u1", "u1"):
            raise ValueError("an array in it is not of bytes")
        if not _is_shape(shape):
            raise ValueError(f"an array in it has the shape {shown(shape)}")
        if not isinstance(data, bytes) or len(data) != prod(shape):
            raise ValueError(f"an array in it is not whole: its shape is {shape}")
        return np.frombuffer(data, dtype=np.uint8).reshape(shape, order="F" if fortran else "C")


def _is_shape(shape: object) -> bool:
    """Whether these are a few sizes, so that multiplying them takes no time."""
    if not isinstance(shape, tuple) or len(shape) > MOST_DIMENSIONS:
        return False
    return all(type(size) is int and 0 <= size < LARGEST for size in shape)


class _Dtype:
    def __init__(self, kind: object = None, *_: object) -> None:
        self.kind = kind

    def __setstate__(self, state: object) -> None:
        """Ignore byte order and flags, which single bytes do not have."""


class _Bytes:
    """How Python 3 writes bytes in the old protocols: a call of _codecs.encode."""

    def __new__(cls, text: str = "", encoding: str = "latin1") -> Any:
        if encoding != "latin1":
            raise pickle.UnpicklingError(f"it holds text encoded as {encoding}")
        return text.encode("latin1")

    def __setstate__(self, state: object) -> None:
        """Ignore the state: without this method, a pickle could set attributes of the class."""


# A pickle names what is to be called. These names get inert classes of our own.
_STAND_INS: dict[tuple[str, str], type] = {
    ("numpy.core.multiarray", "_reconstruct"): PickledArray,
    ("numpy._core.multiarray", "_reconstruct"): PickledArray,
    ("numpy", "ndarray"): PickledArray,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _Bytes,
}


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type:
        """A stand-in, or a refusal: anything else could run a stranger's code."""
        try:
            return _STAND_INS[module, name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"it asks to call {module}.{name}, which no data file needs"
            ) from None
