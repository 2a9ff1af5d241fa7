"""Tensors for kernels: making them, and checking those whose address a kernel is given."""

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from snip.common.errors import InputError
from snip.engine.kernels.extension import extension
from snip.engine.kernels.library import library

SPARSE_LAYOUTS = (
    *(torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc),
)
CPU = torch.device("cpu")
HUGE = 4 << 20  # bytes from which a tensor is worth huge pages


def empty(*shape: int) -> torch.Tensor:
    """An uninitialised float32 tensor on the CPU, whatever torch's defaults are.

    A large one is put in huge pages, because touching small pages for the first time is slow.
    """
    tensor = torch.empty(shape, dtype=torch.float32, device=CPU)
    if tensor.nbytes >= HUGE:
        library().snip_prefer_huge_pages(tensor.data_ptr(), tensor.nbytes)
    return tensor


def made(*shape: int) -> tuple[torch.Tensor, int]:
    """A new tensor, and its address: nobody can have changed it yet, so little is checked."""
    tensor = empty(*shape)
    if type(tensor) is not torch.Tensor:
        raise InputError("native kernels cannot run in a mode that makes tensors without memory")
    return tensor, tensor.data_ptr()


class Reused:
    """Memory that a new tensor takes over from the last one, once nobody has that any more.

    An allocator hands out other memory in every step, which no cache has, and pages that the
    system has to clear first.
    """

    def __init__(self) -> None:
        # The memory, and the view of it that the last tensor holds on to as long as it, another
        # tensor in its memory or a graph lives. One pair, or as many as threads ask at a time.
        self._pairs: list[tuple[np.ndarray, weakref.ref[np.ndarray]]] = []
        self._room: Any = None

    def room(self) -> Any:
        """The same for the node in C++, which has memory of its own."""
        if self._room is None:
            address = ctypes.cast(library().snip_prefer_huge_pages, ctypes.c_void_p).value
            self._room = extension().Room(address, HUGE)
        return self._room

    def made(self, *shape: int) -> tuple[torch.Tensor, int]:
        """A tensor with anything in it, and its address."""
        try:
            array, last = self._pairs.pop()  # so that no other thread finds it now
        except IndexError:
            array, last = made(*shape)[0].numpy(), None
        if array.shape != shape or (last is not None and last() is not None):
            array = made(*shape)[0].numpy()
        view = array.view()
        tensor = torch.from_numpy(view)
        self._pairs.append((array, weakref.ref(view)))
        return tensor, tensor.data_ptr()


def pointer(
    tensor: torch.Tensor | None,
    shape: tuple[int, ...],
    name: str,
    *,
    dtype: torch.dtype = torch.float32,
    rows: bool = False,
) -> int | None:
    """Address of a tensor that a kernel takes for contiguous memory of this shape and type.

    Every address of a tensor that a kernel gets comes from here or from a `made`. With `rows`, only
    each row of a matrix must be contiguous. None becomes a null pointer; anything else raises
    InputError.
    """
    if tensor is None:
        return None
    if tensor.shape == shape and readable(tensor, dtype):
        length = _length(tensor, rows)
        end = (tensor.storage_offset() + length) * dtype.itemsize
        # A storage can be made smaller under a tensor that looks into it.
        if length >= 0 and end <= tensor.untyped_storage().nbytes():
            address = tensor.data_ptr()
            if address or not length:  # a tensor of torch.func may have a storage and no address
                return address
    raise InputError(
        f"{name} must be a contiguous {str(dtype).removeprefix('torch.')} tensor {list(shape)} in "
        f"the CPU's memory, not {type(tensor).__name__} of {tensor.dtype} {list(tensor.shape)}, "
        f"strides {list(tensor.stride())}, on {tensor.device}"
    )


def readable(tensor: torch.Tensor, dtype: torch.dtype = torch.float32) -> bool:
    """Whether a kernel may read this tensor's memory as numbers of this type.

    Layers compute with any other tensor in torch, slowly.
    A tensor can say that it is on the CPU and have no memory there (those of torch's
    FakeTensorMode), and a negated view has the opposite numbers in its memory.
    """
    if tensor.dtype is not dtype or tensor.layout is not torch.strided or tensor.is_neg():
        return False
    return _storage_device(tensor) == CPU


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether it has no memory of its own, although it says that it is on a real device.

    Those of FakeTensorMode have a shape only, those of torch.func stand for other tensors, and the
    memory of those of oneDNN is a secret.
    """
    if tensor.layout in SPARSE_LAYOUTS:  # torch says what it cannot do with them
        return False
    device = _storage_device(tensor)
    return device is None or device.type != tensor.device.type


def memory_of(tensor: torch.Tensor) -> tuple[object, ...]:
    """What `pointer` checks and a user may change about a tensor, and its address.

    The size of the storage is part of it: one that is made smaller may come back to its address.
    """
    return (  # one expression, as this may run several times in every step
        *(tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.is_neg()),
        *(tensor.storage_offset(), tensor.untyped_storage().nbytes()),
    )


class Places:
    """Where tensors were when it was made; it holds none of them."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._memory = [memory_of(t) for t in tensors]

    def are(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether those of these tensors are the same."""
        return [memory_of(t) for t in tensors] == self._memory


def places_of(tensors: Sequence[torch.Tensor]) -> Any:
    """`Places`, or the same in C++: this is asked several times in every step."""
    made = extension()
    return Places(tensors) if made is None else made.Places(tensors)


def pointers(
    tensors: Sequence[torch.Tensor], shapes: Sequence[tuple[int, ...]], name: str
) -> list[int]:
    """`pointer` of each of these tensors."""
    made = extension()
    found: list[int] | None = None if made is None else made.addresses(tensors, shapes)
    if found is None:  # or one of them is empty or wrong, which the other way tells
        shaped = zip(tensors, shapes, strict=True)
        found = [pointer(t, shape, name) or 0 for t, shape in shaped]
    return found


def _storage_device(tensor: torch.Tensor) -> torch.device | None:
    """Where the tensor's numbers are; None if it has no storage."""
    try:
        return tensor.untyped_storage().device
    except NotImplementedError:
        return None


def _length(tensor: torch.Tensor, rows: bool) -> int:
    """Numbers from the tensor's first to its last in memory; negative if there are gaps."""
    if tensor.is_contiguous():
        return tensor.numel()
    if rows and (tensor.stride(1) == 1 or tensor.shape[1] == 1):
        return (tensor.shape[0] - 1) * tensor.stride(0) + tensor.shape[1]
    return -1
