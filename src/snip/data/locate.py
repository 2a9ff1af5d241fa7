"""Where users have their data: the folders looked into, in order."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from snip.common.errors import FileError
from snip.common.files import cache_folder, is_folder
from snip.data.spec import Layout, Reader, Spec

# Names of folders inside a set's folder, as torchvision, the hub and the archives have them.
_INNER = ("raw", "data", "plain_text", "fashion_mnist", "default", "parquet")


class Found(NamedTuple):
    """One copy of a data set: where it lies, and how it is read."""

    folder: Path
    read: Reader


def find(spec: Spec, data_dir: Path | None) -> Found | None:
    """The first copy found; `data_dir`, when given, is the only place searched.

    A set that ships inside this package is taken from there, unless `data_dir` holds it.
    """
    if spec.packaged is None or data_dir is not None:
        found = _search(spec, data_dir)
        if found is not None:
            return found
    return None if spec.packaged is None else _recognized(spec.layouts[0], [spec.packaged], spec)


def _search(spec: Spec, data_dir: Path | None) -> Found | None:
    for root, named in _roots(data_dir):
        try:
            found = _search_root(spec, root, named=named)
        except FileError:
            if named:
                raise
            continue  # a folder of the usual places that we may not look into
        if found is not None:
            return found
    return None


def _search_root(spec: Spec, root: Path, *, named: bool) -> Found | None:
    folders = list(_folders(root, spec))
    # The outer loop is over layouts, so that genuine files win over a re-encoded copy.
    for layout in spec.layouts:
        bare = [root] if named or layout.distinct else []
        inside = [root / name for name in _INNER if bare]
        found = _recognized(layout, (*folders, *bare, *inside), spec)
        if found is not None:
            return found
    return None


def _recognized(layout: Layout, folders: Iterable[Path], spec: Spec) -> Found | None:
    for folder in folders:
        reader = layout.recognize(folder, spec)
        if reader is not None:
            return Found(folder, reader)
    return None


def named_folder(data_dir: Path | None) -> Path | None:
    """The folder that the user named, by argument or by SNIP_DATA."""
    if data_dir is not None:
        return Path(os.path.expanduser(data_dir))
    chosen = os.environ.get("SNIP_DATA")
    return Path(os.path.expanduser(chosen)) if chosen else None


def check_named_folder(data_dir: Path | None) -> None:
    """Refuse a named folder that is not there."""
    folder = named_folder(data_dir)
    if folder is not None and not is_folder(folder):
        origin = "--data-dir (data_dir=)" if data_dir is not None else "SNIP_DATA"
        raise FileError(
            f"the data folder {folder}, named by {origin}, does not exist: "
            "create it or name another."
        )


def download_folder(data_dir: Path | None) -> Path:
    """Where downloads go: the folder that the user named, or the user's cache."""
    return named_folder(data_dir) or cache_folder() / "data"


def places(data_dir: Path | None) -> str:
    """The folders searched, for a message."""
    return ", ".join(str(root) for root, _ in _roots(data_dir))


def _roots(data_dir: Path | None) -> Iterator[tuple[Path, bool]]:
    """(folder, whether the user named it), in the order of the search."""
    folder = named_folder(data_dir)
    if folder is not None:
        yield folder, True
    if data_dir is not None:
        return
    hub = os.environ.get("HF_HUB_CACHE") or (
        os.path.join(os.environ.get("HF_HOME") or "~/.cache/huggingface", "hub")
    )
    for place in (
        "data",  # torchvision's examples
        "datasets",
        "~/data",
        "~/datasets",
        "~/.cache/torch/datasets",
        "~/.keras/datasets",
        hub,
        str(cache_folder() / "data"),
        "/usr/share/datasets",  # Debian's dataset-* packages
    ):
        yield Path(os.path.expanduser(place)), False


def _folders(root: Path, spec: Spec) -> Iterator[Path]:
    """The folders below `root` that may hold the set, going by their names."""
    wanted = {_plain(name) for name in spec.folders}
    for folder in _children(root):
        if _plain(folder.name) in wanted:
            yield folder
            yield from (folder / name for name in _INNER)
            for snapshot in _children(folder / "snapshots"):  # the hub's own cache
                yield snapshot
                yield from (snapshot / name for name in _INNER)


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError:
        return []


def _plain(name: str) -> str:
    """A folder's name without case, '-', '_' and the hub's 'datasets--owner--'."""
    return "".join(c for c in name.rsplit("--", 1)[-1].lower() if c.isalnum())
