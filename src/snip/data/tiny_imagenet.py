"""Tiny-ImageNet as its home publishes it: tiny-imagenet-200.zip or the unpacked folder."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from snip.common.files import damaged, is_file, is_folder, read_bytes, sha256, unreadable
from snip.data.cache import cached, fingerprint
from snip.data.images import decode_images, decoder_version
from snip.data.reading import FETCH_AGAIN, reading
from snip.data.spec import Content, Reader, Spec
from snip.data.split import Split

_ARCHIVE, _FOLDER = "tiny-imagenet-200.zip", "tiny-imagenet-200"
_LARGEST = 1 << 20  # a genuine image has 2 kB; more could fill the memory
_IMAGE = re.compile(r"(train|val)/(?:.*/)?[^/]+\.jpe?g", re.IGNORECASE)
Read = Callable[[str], bytes]  # the content of a file, by its path below tiny-imagenet-200


def folder_layout(folder: Path, spec: Spec) -> Reader | None:
    """The reader of the unpacked folder, or of the folder that holds it."""
    for place in (folder / _FOLDER, folder):
        if is_file(place / "wnids.txt") and is_folder(place / "train"):
            return lambda: _read_folder(place, spec)
    return None


def zip_layout(folder: Path, spec: Spec) -> Reader | None:
    """The reader of the archive, which is never unpacked to disk."""
    path = folder / _ARCHIVE
    return (lambda: _read_zip(path, spec)) if is_file(path) else None


def _read_folder(folder: Path, spec: Spec) -> Content:
    try:
        found = sorted(_walk(folder))
    except OSError as error:
        raise unreadable(folder, error, "give yourself read access to it") from error

    def read(name: str) -> bytes:
        with reading(folder / name):
            return read_bytes(folder / name, most=_LARGEST)

    state = fingerprint("folder", str(folder.resolve()), found)
    return _content(folder, spec, [name for name, *_ in found], read, state)


def _read_zip(path: Path, spec: Spec) -> Content:
    with reading(path), zipfile.ZipFile(path) as archive:
        members = {
            info.filename.removeprefix(f"{_FOLDER}/"): info
            for info in archive.infolist()
            if not info.is_dir()
        }

        def read(name: str) -> bytes:
            if name not in members:
                raise ValueError(f"{name} is not in it")
            if members[name].file_size > _LARGEST:
                raise ValueError(f"{name} has {members[name].file_size} bytes")
            return archive.read(members[name])

        images = sorted(name for name in members if _IMAGE.fullmatch(name))
        return _content(path, spec, images, read, fingerprint("zip", sha256(path)))


def _content(where: Path, spec: Spec, images: list[str], read: Read, state: str) -> Content:
    """Training images and, as the test set, the validation images: test labels are secret."""
    classes = _classes(where, spec, read)
    train = [name for name in images if name.startswith("train/")]
    valid = [name for name in images if name.startswith("val/")]
    if not train or not valid:
        raise damaged(
            where, f"{len(train)} training and {len(valid)} validation images", FETCH_AGAIN
        )
    for names in (train, valid):
        spec.require_count(len(names), where)
    annotated = None if _sorted_by_class(valid, classes) else _annotations(where, read)
    splits = []
    for part, names in (("train", train), ("val", valid)):
        labels = [
            _label(name, classes, annotated if part == "val" else None, where) for name in names
        ]
        splits.append(_split(where, spec, names, labels, read, fingerprint(state, part)))
    return Content(splits[0], splits[1], jpeg=True)


def _split(
    where: Path, spec: Spec, names: list[str], labels: list[int], read: Read, state: str
) -> Split:
    blobs = ((name, read(name)) for name in names)
    images = cached(
        fingerprint(state, spec.shape, decoder_version()),
        (len(names), *spec.shape),
        lambda: decode_images(blobs, count=len(names), shape=spec.shape, where=where),
    )
    return Split(torch.from_numpy(images), torch.from_numpy(np.array(labels, dtype=np.int64)))


def _classes(where: Path, spec: Spec, read: Read) -> dict[str, int]:
    """WordNet name -> label: the position in wnids.txt."""
    names = _text(where, "wnids.txt", read).split()
    if len(set(names)) != spec.classes or len(names) != spec.classes:
        raise damaged(
            where, f"wnids.txt names {len(set(names))} classes, not {spec.classes}", FETCH_AGAIN
        )
    return {name: label for label, name in enumerate(names)}


def _annotations(where: Path, read: Read) -> dict[str, str]:
    """File name of a validation image -> its WordNet name."""
    text = _text(where, "val/val_annotations.txt", read)
    rows = [line.split("\t") for line in text.splitlines()]
    if any(len(row) < 2 for row in rows):
        raise damaged(where, "val/val_annotations.txt has a line without a class", FETCH_AGAIN)
    return {row[0]: row[1] for row in rows}


def _text(where: Path, name: str, read: Read) -> str:
    with reading(where / name):
        return read(name).decode()


def _sorted_by_class(valid: list[str], classes: dict[str, int]) -> bool:
    """Many users move validation images into one folder per class."""
    return all(name.split("/")[1] in classes for name in valid)


def _label(
    name: str, classes: dict[str, int], annotated: dict[str, str] | None, where: Path
) -> int:
    folder, file = name.split("/")[1], name.rsplit("/", 1)[1]
    wnid = folder if annotated is None else annotated.get(file, "")
    if wnid not in classes:
        raise damaged(where, f"{name} belongs to no class of wnids.txt", FETCH_AGAIN)
    return classes[wnid]


def _walk(folder: Path) -> Iterator[tuple[str, int, int]]:
    """(path below `folder`, size, time of change) of every image; plain strings, for speed."""
    for part in ("train", "val"):
        for base, _, names in os.walk(folder / part):
            for name in names:
                path = os.path.join(base, name)
                below = os.path.relpath(path, folder).replace(os.sep, "/")
                if _IMAGE.fullmatch(below):
                    stat = os.stat(path)
                    yield below, stat.st_size, stat.st_mtime_ns
