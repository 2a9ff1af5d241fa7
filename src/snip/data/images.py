"""Decode many small PNG or JPEG images into one array of bytes."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from snip.common.console import track
from snip.common.errors import MissingPackageError
from snip.common.files import damaged
from snip.data.reading import FETCH_AGAIN

if TYPE_CHECKING:
    from types import ModuleType


def missing_extra(package: str) -> MissingPackageError:
    """The error for an optional package that is not installed."""
    return MissingPackageError(
        f"this data set is stored as encoded images, and reading them needs {package}: "
        "run  pip install 'snip-prune[data]'"
    )


def is_jpeg(blob: bytes) -> bool:
    """True if an encoded image starts as JPEG files do."""
    return blob.startswith(b"\xff\xd8\xff")


def decoder_version() -> str:
    """The decoder and its version: another one may round a JPEG's pixels differently."""
    return f"pillow {_pillow().__version__}"


def decode_images(
    blobs: Iterable[tuple[str, bytes]], *, count: int, shape: tuple[int, int, int], where: Path
) -> np.ndarray:
    """(name, encoded image) pairs to uint8 [N, C, H, W], with a progress bar when it is long."""
    pillow, mode = _pillow(), {1: "L", 3: "RGB"}[shape[0]]
    pixels = np.empty((count, *shape), dtype=np.uint8)
    done = 0
    for name, blob in track(blobs, description=f"reading {where.name}", total=count):
        try:
            with pillow.open(io.BytesIO(blob), formats=("PNG", "JPEG")) as image:
                _check_size(image, shape)
                decoded = np.asarray(image.convert(mode)).reshape(*shape[1:], shape[0])
                pixels[done] = decoded.transpose(2, 0, 1)
        except Exception as error:  # pillow raises its own kinds, SyntaxError and struct.error too
            raise damaged(where, f"image {name}: {error}", FETCH_AGAIN) from error
        done += 1
    if done != count:
        raise damaged(where, f"{done} images instead of {count}", FETCH_AGAIN)
    return pixels


def _check_size(image: Any, shape: tuple[int, int, int]) -> None:
    if (image.height, image.width) != shape[1:]:
        # Checked before any pixel is decoded, as a small file can claim to be an enormous image.
        raise ValueError(f"{image.height}x{image.width} pixels, not {shape[1]}x{shape[2]}")


def _pillow() -> ModuleType:
    try:
        from PIL import Image
    except ImportError as error:
        raise missing_extra("pillow") from error
    return Image
