"""Where users have their data: the folders looked into, in order."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from snip.common.cache import cache_folder
from snip.common.errors import FileError
from snip.data.spec import Reader, Spec

# Inside a set's folder: torchvision's, the hub's and the archives' own ways to nest it.
_INNER = ("raw", "data", "plain_text", "fashion_mnist", "default", "parquet")


def find(spec: Spec, data_dir: Path | None) -> Reader | None:
    """The reader of the first copy found; `data_dir`, when given, is the only place searched."""
    for root, named in _roots(data_dir):
        folders = list(_folders(root, spec))
        # Layouts outside, folders inside: the genuine files win over a re-encoded copy.
        for layout in spec.layouts:
            bare = [root] if named or layout.distinct else []
            for folder in (*folders, *bare, *(root / name for name in _INNER if bare)):
                reader = layout.recognize(folder, spec)
                if reader is not None:
                    return reader
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
    if folder is not None and not folder.is_dir():
        origin = "data_dir" if data_dir is not None else "SNIP_DATA"
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
