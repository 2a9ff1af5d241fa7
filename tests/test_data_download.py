"""Downloads: fetched whole and verified, or refused."""

from __future__ import annotations

import dataclasses
import hashlib
import http.server
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from data_layouts import (
    idx_set,
    isolate,
    write_idx,
)

from snip.common.errors import FileError
from snip.data import DATASETS, load
from snip.data.download import download
from snip.data.spec import Remote


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    isolate(monkeypatch, tmp_path)


CONTENT = bytes(range(256)) * 4000
DIGEST = hashlib.sha256(CONTENT).hexdigest()


class Home(http.server.BaseHTTPRequestHandler):
    """A data set's home with moods: /good, /wrong, /short, and 404 for the rest."""

    files: dict[str, bytes]

    def do_GET(self) -> None:
        mood, _, name = self.path.strip("/").partition("/")
        data = self.files.get(name, CONTENT)
        if mood not in ("good", "wrong", "short"):
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if mood == "wrong":
            data = data[::-1]
        self.wfile.write(data[: len(data) // 2] if mood == "short" else data)

    def log_message(self, *_: object) -> None:
        pass


TAKEN: list[socket.socket] = []


@pytest.fixture
def home() -> Iterator[str]:
    Home.files = {}
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Home) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def closed_port() -> str:
    """An address where nobody listens, and nobody else will: the port stays taken."""
    taken = socket.socket()
    TAKEN.append(taken)
    taken.bind(("127.0.0.1", 0))
    return f"http://127.0.0.1:{taken.getsockname()[1]}"


def test_download_arrives_whole_and_is_not_repeated(tmp_path: Path, home: str) -> None:
    path = download(Remote("set.bin", DIGEST, (f"{home}/good",)), tmp_path / "new/folder")
    assert path.read_bytes() == CONTENT
    again = download(Remote("set.bin", DIGEST, (closed_port(),)), tmp_path / "new/folder")
    assert again == path


@pytest.mark.parametrize(
    ("mood", "word"),
    [
        ("wrong", "sent another file"),
        ("short", "bytes"),
        ("missing", "404|Not Found"),
        ("closed", "does not answer"),
    ],
)
def test_failed_download_leaves_nothing(tmp_path: Path, home: str, mood: str, word: str) -> None:
    url = closed_port() if mood == "closed" else f"{home}/{mood}"
    with pytest.raises(FileError, match=word) as caught:
        download(Remote("set.bin", DIGEST, (url,)), tmp_path / "in")
    assert url in str(caught.value)
    assert list((tmp_path / "in").iterdir()) == []


def test_damaged_file_is_replaced_only_by_a_good_one(tmp_path: Path, home: str) -> None:
    (tmp_path / "set.bin").write_bytes(b"old")
    with pytest.raises(FileError):
        download(Remote("set.bin", DIGEST, (f"{home}/wrong",)), tmp_path)
    assert (tmp_path / "set.bin").read_bytes() == b"old"
    download(Remote("set.bin", DIGEST, (f"{home}/good",)), tmp_path)
    assert (tmp_path / "set.bin").read_bytes() == CONTENT


def test_second_home_is_tried(tmp_path: Path, home: str) -> None:
    urls = (closed_port(), f"{home}/wrong", f"{home}/good")
    assert download(Remote("set.bin", DIGEST, urls), tmp_path).read_bytes() == CONTENT


def served(home: str, mood: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Point Fashion-MNIST's table entry at `home`, which serves the tests' own files."""
    write_idx(tmp_path / "served")
    Home.files = {path.name: path.read_bytes() for path in (tmp_path / "served").iterdir()}
    remotes = tuple(
        Remote(name, hashlib.sha256(data).hexdigest(), (f"{home}/{mood}/{name}",))
        for name, data in Home.files.items()
    )
    spec = dataclasses.replace(DATASETS["fashion-mnist"], remotes=remotes)
    monkeypatch.setitem(DATASETS, "fashion-mnist", spec)


def test_load_downloads_when_asked(
    tmp_path: Path, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    served(home, "good", monkeypatch, tmp_path)
    folder = tmp_path / "not yet there"
    with pytest.raises(FileError, match="does not exist"):
        load("fashion-mnist", data_dir=folder)
    data = load("fashion-mnist", data_dir=folder, download=True)
    expected = torch.from_numpy(idx_set()["train-images-idx3-ubyte"])
    assert torch.equal(data.train.images[:, 0], expected)
    monkeypatch.setitem(DATASETS, "fashion-mnist", DATASETS["fashion-mnist"])
    assert len(load("fashion-mnist", data_dir=folder).train) == 12


def test_download_into_the_cache_is_found_again(
    tmp_path: Path, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if Path("/usr/share/datasets/fashion-mnist").exists():
        pytest.skip("this machine has the genuine set")
    served(home, "good", monkeypatch, tmp_path)
    assert len(load("fashion-mnist", download=True).train) == 12
    assert len(load("fashion-mnist").train) == 12
    assert (tmp_path / "cache/data").is_dir()


def test_no_network_is_refused_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served(closed_port(), "good", monkeypatch, tmp_path)
    with pytest.raises(FileError) as caught:
        load("fashion-mnist", data_dir=tmp_path / "in", download=True)
    for word in ("does not answer", "Without a network", "train-images-idx3-ubyte.gz", "SNIP_DATA"):
        assert word in str(caught.value)


def test_every_home_has_a_checksum() -> None:
    for spec in DATASETS.values():
        assert spec.remotes or spec.name in ("mnist", "kmnist")
        for remote in spec.remotes:
            assert len(remote.sha256) == 64
            assert all(url.endswith(remote.name) for url in remote.urls)
