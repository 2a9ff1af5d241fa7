"""Read what torch.save wrote: no code is run, and no more memory is taken than the file has."""

from __future__ import annotations

import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import torch

from snip.common.errors import FileError

# How torch's unpickler reports a function or class that it was asked to call and did not.
ASKED_TO_CALL = re.compile(r"GLOBAL ([\w.]+)")
DEEPEST = 20  # containers in containers; the state of an optimiser has four
LARGEST = 1 << 24  # bytes of the pickle, without the tensors: each may become a value of 72 bytes
COPIES = 4  # times the file's size that its tensors may have: several may share their content


def read_torch(path: Path, fix: str) -> Any:
    """The content of a file of torch.save, with tensors of its own; raises anything if damaged.

    What torch says of a file that asks to run code is not shown: it begins with advice to let it.
    """
    values = _verify(path)
    try:
        # Mapped storages cannot grow; others are enlarged to whatever size a tensor claims.
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        called = ASKED_TO_CALL.search(str(error))
        if called is None:
            raise ValueError("its pickle holds more than weights need") from error
        raise FileError(
            f"{path} asks to run code ({called[1]}), which Snip never does for a file: {fix}."
        ) from error
    return _Copier(COPIES * path.stat().st_size, values).owned(content)


def _verify(path: Path) -> int:
    """Refuse an archive that torch.save did not write. Returns the size of its pickle."""
    # torch.load does not notice flipped bits, but the zip archive has checksums that show them.
    with zipfile.ZipFile(path) as archive:
        if any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist()):
            raise zipfile.BadZipFile("torch.save compresses nothing, but this file is compressed")
        pickles = [i.file_size for i in archive.infolist() if i.filename.endswith("data.pkl")]
        if sum(pickles) > LARGEST:
            raise ValueError(f"its pickle has more than {LARGEST:,} bytes")
        bad = archive.testzip()
    if bad is not None:
        raise zipfile.BadZipFile(f"the checksum of {bad} is wrong")
    return sum(pickles)


class _Copier:
    """Copies tensors, so that nothing depends on the file any more.

    Up to so many bytes of tensors in all, and up to so many values: containers that a file has once
    can be in one another many times, which makes any number of values out of a few.
    """

    def __init__(self, most: int, values: int) -> None:
        self._left, self._values = most, values

    def owned(self, value: Any, depth: int = 0) -> Any:
        """The same content with copies of its tensors."""
        if depth > DEEPEST:
            raise ValueError(f"containers are nested more than {DEEPEST} deep")
        self._values -= 1
        if self._values < 0:
            raise ValueError("it has more values than its pickle has bytes")
        if isinstance(value, torch.Tensor):
            return self._copied(value)
        if isinstance(value, dict):
            return {key: self.owned(part, depth + 1) for key, part in value.items()}
        if isinstance(value, (list, tuple)):
            parts = [self.owned(part, depth + 1) for part in value]
            return parts if isinstance(value, list) else tuple(parts)
        return value

    def _copied(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
            raise ValueError(f"a tensor is {tensor.layout} on {tensor.device}, not plain")
        # A stride of zero lets a few bytes claim to be a tensor of any size.
        self._left -= tensor.numel() * tensor.element_size()
        if self._left < 0:
            raise ValueError(f"a tensor of shape {tuple(tensor.shape)} is larger than the file")
        return tensor.detach().clone()
