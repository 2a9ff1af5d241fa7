"""Fetch a file from its public home; it appears under its name only once it is verified."""

from __future__ import annotations

import hashlib
import http.client
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from snip.common import files
from snip.common.console import track
from snip.common.errors import FileError
from snip.data.spec import Remote

_BLOCK = 1 << 18
_PATIENCE = 30  # seconds without a byte


def download(remote: Remote, folder: Path) -> Path:
    """The path of `remote` below `folder`, fetched unless it is there already."""
    path = folder / remote.name
    if files.is_file(path) and files.sha256(path) == remote.sha256:
        return path
    problems = []
    for url in remote.urls:
        try:
            files.write_with(path, partial(_fetch, url, remote))
            return path
        except _TransferError as error:
            problems.append(str(error))
    raise FileError(f"cannot download {remote.name}: {'; '.join(problems)}.")


class _TransferError(FileError):
    """One address failed. The next is tried."""


def _fetch(url: str, remote: Remote, path: Path) -> None:
    digest, received = hashlib.sha256(), 0
    try:
        with urllib.request.urlopen(url, timeout=_PATIENCE) as response, path.open("wb") as file:
            expected = response.headers.get("Content-Length")
            blocks = -(-int(expected) // _BLOCK) if expected else None
            for block in track(
                _blocks(response), description=f"downloading {remote.name}", total=blocks
            ):
                digest.update(block)
                received += len(block)
                file.write(block)
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as e:
        raise _TransferError(f"{url} does not answer ({getattr(e, 'reason', None) or e})") from e
    if expected and received != int(expected):
        raise _TransferError(f"{url} sent {received} of {expected} bytes")
    if digest.hexdigest() != remote.sha256:
        raise _TransferError(
            f"{url} sent another file (SHA-256 {digest.hexdigest()[:12]}..., "
            f"not {remote.sha256[:12]}...)"
        )


def _blocks(response: Any) -> Iterator[bytes]:
    while block := response.read(_BLOCK):
        yield block
