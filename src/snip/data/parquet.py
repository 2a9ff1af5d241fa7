"""Parquet files as the hub stores image sets: columns img or image {bytes, path}, and label."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from snip.common import files
from snip.data.cache import cached, fingerprint
from snip.data.images import decode_images, decoder_version, is_jpeg, missing_extra
from snip.data.reading import reading
from snip.data.spec import Content, Reader, Spec
from snip.data.split import Split


def parquet_layout(folder: Path, spec: Spec) -> Reader | None:
    """The reader of a folder with train-*.parquet and test-*.parquet (or valid-*)."""
    if not _shards(folder, ("train",)):
        return None
    return lambda: _read_folder(folder, spec)


def _read_folder(folder: Path, spec: Spec) -> Content:
    train, test = _shards(folder, ("train",)), _shards(folder, spec.test_split)
    if not test:
        raise files.unreadable(
            folder / f"{spec.test_split[0]}-*.parquet", "no such file", "put it there"
        )
    jpeg = any(is_jpeg(_first_image(path)) for path in (train[0], test[0]))
    return Content(_read_split(train, spec), _read_split(test, spec), jpeg)


def _shards(folder: Path, names: tuple[str, ...]) -> list[Path]:
    """train.parquet, train-00000-of-00002.parquet and so on, or the files of train/."""
    for name in names:
        found = sorted({*folder.glob(f"{name}.parquet"), *folder.glob(f"{name}-*.parquet")})
        found = found or sorted((folder / name).glob("*.parquet"))
        if found:
            return found
    return []


def _read_split(paths: list[Path], spec: Spec) -> Split:
    promised = re.search(r"-of-(\d+)", paths[0].name)
    if promised and int(promised[1]) != len(paths):
        raise files.unreadable(
            paths[0].parent,
            f"{len(paths)} of the {int(promised[1])} parts of {paths[0].name}",
            "put the others beside it",
        )
    parts = [_read_file(path, spec) for path in paths]
    # Usually there is one part, and concatenating it alone would copy it.
    images, labels = (
        arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
        for arrays in zip(*parts, strict=True)
    )
    return Split(torch.from_numpy(images), torch.from_numpy(labels))


def _read_file(path: Path, spec: Spec) -> tuple[np.ndarray, np.ndarray]:
    """Images [N, C, H, W] and labels [N] of one file."""
    labels = _labels(path, spec)
    with reading(path):
        key = fingerprint("parquet", files.sha256(path), spec.shape, decoder_version())
    shape = (len(labels), *spec.shape)
    images = cached(
        key,
        shape,
        lambda: decode_images(_images(path), count=len(labels), shape=spec.shape, where=path),
    )
    return images, labels


def _labels(path: Path, spec: Spec) -> np.ndarray:
    classes = spec.classes
    with reading(path):
        file = _open(path)
        spec.require_count(file.metadata.num_rows, path)
        _image_column(file)
        if "label" not in file.schema_arrow.names:
            raise ValueError(f"columns {', '.join(file.schema_arrow.names)}, but none is 'label'")
        column = file.read(columns=["label"])["label"]
        if column.null_count:
            raise ValueError(f"{column.null_count} labels are missing")
        labels = column.to_numpy()
        if not np.issubdtype(labels.dtype, np.integer):
            raise ValueError(f"its labels are {column.type}, not whole numbers")
        if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
            raise ValueError(
                f"labels run from {labels.min()} to {labels.max()}, not 0 to {classes - 1}"
            )
        return labels.astype(np.int64)


def _first_image(path: Path) -> bytes:
    return next((blob for _, blob in _images(path, rows=1)), b"")


def _images(path: Path, rows: int = 1000) -> Iterator[tuple[str, bytes]]:
    """(row number, encoded image) for every row, a thousand in memory at a time."""
    with reading(path):
        file = _open(path)
        column, number = _image_column(file), 0
        for batch in file.iter_batches(batch_size=rows, columns=[column]):
            for blob in batch.column(0).field("bytes").to_pylist():
                if not isinstance(blob, bytes):
                    raise ValueError(f"row {number} has no image bytes")
                yield f"in row {number}", blob
                number += 1


def _image_column(file: Any) -> str:
    from pyarrow import types

    for name in ("img", "image"):
        if name in file.schema_arrow.names:
            kind = file.schema_arrow.field(name).type
            if types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
                return name
    names = ", ".join(file.schema_arrow.names)
    raise ValueError(f"columns {names}, but none is 'img' or 'image' with 'bytes' in it")


def _open(path: Path) -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise missing_extra("pyarrow") from error
    return pyarrow.parquet.ParquetFile(path, page_checksum_verification=True)
