"""Where the surviving weights of a linear layer are, by rows and by columns."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from snip.common.errors import InputError
from snip.engine.kernels.memory import pointer


@dataclass(frozen=True, eq=False)
class LinearIndex:
    """CSR of a [rows, columns] mask and of its transpose; values stay in the mask's row order."""

    rows: int
    columns: int
    rowptr: torch.Tensor  # int32 [rows + 1]
    cols: torch.Tensor  # int32 [kept]
    t_rowptr: torch.Tensor  # int32 [columns + 1]
    t_cols: torch.Tensor  # int32 [kept], the rows that use a column
    t_order: torch.Tensor  # int32 [kept], where the transpose finds its values

    @cached_property
    def kept(self) -> int:
        """Number of surviving weights."""
        return self.cols.numel()

    @cached_property
    def pointers(self) -> tuple[int | None, ...]:
        """Addresses of rowptr, cols, t_rowptr, t_cols and t_order, asked for on every call."""
        arrays = (self.rowptr, self.cols, self.t_rowptr, self.t_cols, self.t_order)
        sizes = (self.rows + 1, self.kept, self.columns + 1, self.kept, self.kept)
        return tuple(
            pointer(array, (size,), "an index", dtype=torch.int32)
            for array, size in zip(arrays, sizes, strict=True)
        )

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "pointers"}

    @classmethod
    def from_mask(cls, mask: torch.Tensor) -> "LinearIndex":
        """Index of a bool mask [out features, in features]; True is kept."""
        check_mask(mask, 2)
        rows, columns = mask.shape
        flat = np.flatnonzero(mask.numpy())
        row, col = np.divmod(flat, columns)
        order = np.argsort(col.astype(np.int32), kind="stable")  # rows stay ascending in a column
        return cls(
            rows=rows,
            columns=columns,
            rowptr=_pointers(row, rows),
            cols=_int32(col),
            t_rowptr=_pointers(col, columns),
            t_cols=_int32(row[order]),
            t_order=_int32(order),
        )

    def __deepcopy__(self, memo: Any) -> "LinearIndex":
        return self  # immutable, and as large as the weights


def check_mask(mask: torch.Tensor, dimensions: int) -> None:
    """InputError unless the mask is a bool CPU tensor of so many dimensions."""
    if mask.dtype != torch.bool or mask.dim() != dimensions or mask.device.type != "cpu":
        raise InputError(
            f"a mask must be a bool CPU tensor of {dimensions} dimensions, not "
            f"{mask.dtype} {tuple(mask.shape)} on {mask.device}"
        )
    if mask.numel() >= 2**31:
        raise InputError(f"a mask of {mask.numel()} weights is too large for 32-bit indices")


def _pointers(rows: np.ndarray, count: int) -> torch.Tensor:
    starts = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(np.bincount(rows, minlength=count), out=starts[1:])
    return torch.from_numpy(starts)


def _int32(numbers: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(numbers, dtype=np.int32))
