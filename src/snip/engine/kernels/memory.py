"""Tensors for kernels: making them, and checking those whose address a kernel is given."""

import torch

from snip.common.errors import InputError
from snip.engine.kernels.library import library

HUGE = 4 << 20  # bytes from which a tensor is worth huge pages


def empty(*shape: int) -> torch.Tensor:
    """An uninitialised float32 tensor on the CPU, whatever torch's defaults are.

    A large one is put in huge pages, because touching small pages for the first time is slow.
    """
    tensor = torch.empty(shape, dtype=torch.float32, device="cpu")
    if 4 * tensor.numel() >= HUGE:
        library().snip_prefer_huge_pages(tensor.data_ptr(), tensor.nbytes)
    return tensor


def made(*shape: int) -> tuple[torch.Tensor, int]:
    """A new tensor, and its address: nobody can have changed it yet, so little is checked."""
    tensor = empty(*shape)
    if type(tensor) is not torch.Tensor:
        raise InputError("native kernels cannot run in a mode that makes tensors without memory")
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

    Every address of a tensor that a kernel gets comes from here or from `made`. With `rows`, only
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
            return tensor.data_ptr()
    raise InputError(
        f"{name} must be a contiguous {str(dtype).removeprefix('torch.')} tensor {list(shape)} in "
        f"the CPU's memory, not {type(tensor).__name__} of {tensor.dtype} {list(tensor.shape)}, "
        f"strides {list(tensor.stride())}, on {tensor.device}"
    )


def readable(tensor: torch.Tensor, dtype: torch.dtype = torch.float32) -> bool:
    """Whether a kernel may read this tensor's memory as numbers of this type.

    A tensor can say that it is on the CPU and have no memory there (those of torch's
    FakeTensorMode), and a negated view has the opposite numbers in its memory.
    """
    if tensor.dtype is not dtype or tensor.is_neg():
        return False
    return tensor.untyped_storage().device.type == "cpu"


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether it has no numbers, only a shape, although it says that it is on a real device."""
    if tensor.layout is not torch.strided:
        return False
    return tensor.untyped_storage().device.type != tensor.device.type


def memory_of(tensor: torch.Tensor) -> tuple[object, ...]:
    """What `pointer` checks and a user may change about a tensor, and its address."""
    layout = (tensor.dtype, tensor.device, tensor.shape, tensor.stride(), tensor.is_neg())
    return tensor.data_ptr(), *layout


def _length(tensor: torch.Tensor, rows: bool) -> int:
    """Numbers from the tensor's first to its last in memory; negative if there are gaps."""
    if tensor.is_contiguous():
        return tensor.numel()
    if rows and (tensor.stride(1) == 1 or tensor.shape[1] == 1):
        return (tensor.shape[0] - 1) * tensor.stride(0) + tensor.shape[1]
    return -1
