"""Data sets by name, found where users have them and held whole in memory."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from snip.common.errors import FileError, nearest
from snip.common.files import unreadable
from snip.data.augment import Augmentation
from snip.data.batches import Batches
from snip.data.dataset import Dataset
from snip.data.download import download as download_file
from snip.data.locate import Found, check_named_folder, download_folder, find, places
from snip.data.spec import Content, Spec
from snip.data.split import Split
from snip.data.table import DATASETS

__all__ = ["DATASETS", "Augmentation", "Batches", "Dataset", "Split", "load"]


def load(
    name: str, *, data_dir: str | os.PathLike[str] | None = None, download: bool = False
) -> Dataset:
    """A data set by name, from `data_dir`, SNIP_DATA or the usual places; fetched only if asked."""
    if name not in DATASETS:
        raise nearest("data set", name, DATASETS)
    spec, folder = DATASETS[name], None if data_dir is None else Path(data_dir)
    if not download and spec.packaged is None:
        check_named_folder(folder)
    found = find(spec, folder)
    if found is None and download:
        _download(spec, folder)
        found = find(spec, folder)
    if found is None:
        raise FileError(f"{name} is not in {places(folder)}: {_advice(spec)}")
    content = found.read()
    _refuse_another_set(spec, found, content)
    return Dataset.from_splits(
        name,
        content.train,
        content.test,
        classes=spec.classes,
        note=_note(spec, content),
        augment=spec.augment,
    )


def _refuse_another_set(spec: Spec, found: Found, content: Content) -> None:
    """Several sets have files of the same names: the first labels show whose these are."""
    for other in DATASETS.values():
        known = list(other.first_labels)
        if other is not spec and known and content.train.labels[: len(known)].tolist() == known:
            raise unreadable(
                found.folder,
                f"these are {other.folders[0]}'s files, not {spec.name}'s: the names are the same",
                f"put the files of {spec.name} into a folder called {spec.folders[0]}",
            )


def _download(spec: Spec, data_dir: Path | None) -> None:
    folder = download_folder(data_dir) / spec.folders[0]
    try:
        for remote in spec.remotes:
            download_file(remote, folder)
    except FileError as error:
        raise FileError(f"{error} Without a network, {_advice(spec)}") from error


def _advice(spec: Spec) -> str:
    fetching = "; where there is a network, --download (download=True) fetches it"
    return (
        f"{spec.advice}, and name FOLDER by --data-dir (data_dir=) or SNIP_DATA"
        f"{fetching if spec.remotes else ''}."
    )


def _note(spec: Spec, content: Content) -> str:
    """What must be said wherever an error measured on this copy is printed."""
    notes = ["JPEG-recompressed"] if content.jpeg and spec.lossless else []
    counts = torch.bincount(content.train.labels, minlength=spec.classes)
    if len(content.train) < spec.per_class * spec.classes:
        even = int(counts.min()) == int(counts.max())
        notes.append(
            f"{int(counts[0])} of {spec.per_class} images per class"
            if even
            else f"{len(content.train)} of {spec.per_class * spec.classes} training images"
        )
    return ", ".join(notes)
