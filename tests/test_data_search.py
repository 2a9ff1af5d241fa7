"""Search and download: found where users have it, fetched whole and verified, or refused."""

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
    cifar_files,
    idx_set,
    isolate,
    tiny_imagenet_files,
    write_cifar_parquet,
    write_files,
    write_idx,
    write_tar,
    write_zip,
)

from snip.data import DATASETS, load
from snip.data.download import download
from snip.data.spec import Remote
from snip.errors import FileError, InputError


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    isolate(monkeypatch, tmp_path)


# --- where users have it -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "below", ["", "FashionMNIST/raw", "FashionMNIST", "fashion-mnist", "fashion_mnist/data", "raw"]
)
def test_folders_of_fashion_mnist(tmp_path: Path, below: str) -> None:
    write_idx(tmp_path / "mine" / below)
    assert len(load("fashion-mnist", data_dir=tmp_path / "mine").train) == 12


@pytest.mark.parametrize("below", ["", "cifar10", "CIFAR-10", "cifar_10", "cifar10/plain_text"])
def test_folders_of_cifar(tmp_path: Path, below: str) -> None:
    write_cifar_parquet(tmp_path / "mine" / below)
    assert len(load("cifar-10", data_dir=str(tmp_path / "mine")).train) == 10


@pytest.mark.parametrize(
    "place",
    [
        "work/data",
        "work/datasets",
        "home/data",
        "home/.cache/torch/datasets",
        "home/.keras/datasets",
    ],
)
def test_usual_places(tmp_path: Path, place: str) -> None:
    write_files(tmp_path / place / "cifar-10-batches-py", cifar_files("py"))
    assert len(load("cifar-10").train) == 20


@pytest.mark.parametrize("place", ["work/data", "home/.keras/datasets"])
def test_archives_lie_bare_in_usual_places(tmp_path: Path, place: str) -> None:
    write_tar(tmp_path / place / "cifar-10-python.tar.gz", cifar_files("py"))
    write_zip(tmp_path / place / "tiny-imagenet-200.zip", tiny_imagenet_files())
    assert len(load("cifar-10").train) == 20
    assert len(load("tiny-imagenet").train) == 200


def test_cache_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = "datasets--uoft-cs--cifar10/snapshots/0b27149/plain_text"
    write_cifar_parquet(tmp_path / "home/.cache/huggingface/hub" / inner)
    assert len(load("cifar-10").train) == 10
    monkeypatch.setenv("HF_HOME", str(tmp_path / "elsewhere"))
    with pytest.raises(FileError):
        load("cifar-10")
    write_cifar_parquet(tmp_path / "elsewhere/hub" / inner)
    assert len(load("cifar-10").train) == 10


def test_snip_data_comes_first_and_the_rest_is_still_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path / "work/data/cifar-10-batches-bin", cifar_files("bin"))
    write_cifar_parquet(tmp_path / "named/cifar10")
    monkeypatch.setenv("SNIP_DATA", str(tmp_path / "named"))
    assert len(load("cifar-10").train) == 10
    write_idx(tmp_path / "work/data/FashionMNIST/raw")
    assert len(load("fashion-mnist").train) == 12


def test_data_dir_is_the_only_place_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cifar_parquet(tmp_path / "named/cifar10")
    monkeypatch.setenv("SNIP_DATA", str(tmp_path / "named"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match="empty"):
        load("cifar-10", data_dir=tmp_path / "empty")


def test_genuine_files_win_over_parquet(tmp_path: Path) -> None:
    write_cifar_parquet(tmp_path / "mine/cifar10", kind="JPEG")
    write_tar(tmp_path / "mine/cifar-10-python.tar.gz", cifar_files("py"))
    assert load("cifar-10", data_dir=tmp_path / "mine").note == "2 of 5000 images per class"


def test_files_of_unknown_origin_are_left_alone(tmp_path: Path) -> None:
    """Nobody said that what lies bare in ./data is this set: the names are anyone's."""
    write_idx(tmp_path / "work/data")
    write_cifar_parquet(tmp_path / "work/data")
    with pytest.raises(FileError, match="cifar-10 is not in"):
        load("cifar-10")


def test_mnist_of_the_package_unless_a_folder_is_named(tmp_path: Path) -> None:
    write_idx(tmp_path / "mine/MNIST/raw")
    assert len(load("mnist", data_dir=tmp_path / "mine").train) == 12
    assert len(load("mnist", data_dir=tmp_path).train) == 60000


# --- refusals ------------------------------------------------------------------------------------


def test_unknown_name() -> None:
    with pytest.raises(InputError, match=r"unknown data set 'cifar10': did you mean 'cifar-10'"):
        load("cifar10")


@pytest.mark.parametrize(
    ("name", "what"),
    [("cifar-10", "cifar-10-binary.tar.gz"), ("tiny-imagenet", "tiny-imagenet-200.zip")],
)
def test_refusal_says_what_to_put_where(name: str, what: str) -> None:
    with pytest.raises(FileError) as caught:
        load(name)
    sentence = str(caught.value)
    for word in (name, what, "FOLDER", "--data-dir", "SNIP_DATA", "download=True"):
        assert word in sentence


def test_named_folder_must_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileError, match="named by data_dir, does not exist"):
        load("cifar-10", data_dir=tmp_path / "nowhere")
    monkeypatch.setenv("SNIP_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(FileError, match="named by SNIP_DATA, does not exist"):
        load("cifar-10")


# --- downloads -----------------------------------------------------------------------------------

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


@pytest.fixture
def home() -> Iterator[str]:
    Home.files = {}
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Home) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def closed_port() -> str:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{sock.getsockname()[1]}"


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
        assert spec.name == "mnist" or spec.remotes
        for remote in spec.remotes:
            assert len(remote.sha256) == 64
            assert all(url.endswith(remote.name) for url in remote.urls)
