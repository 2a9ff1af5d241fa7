"""Damaged and hostile files, pipes and devices: a sentence or the same content, and no waiting."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import attacks_files
import pytest
import torch
from attacks_files import altered, attack, nodes, refused
from data_layouts import refused as data_refused
from hostile_kinds import KINDS
from hostile_runs import read_weights

import snip
from snip.common.files import append_line, read_bytes, read_json, sha256
from snip.common.lock import locked
from snip.engine.convert.timings import Timings
from snip.export import compact
from snip.training.checkpoint import load_checkpoint
from snip.training.metrics import read_metrics

linux = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc here")
DEEP = 100_000


@pytest.mark.parametrize("name", sorted(KINDS))
def test_no_field_does_harm(name: str, tmp_path: Path) -> None:
    """Every field of a real file becomes three things that it must not be; checksums agree."""
    kind = KINDS[name]
    path = kind.make(tmp_path)
    whole, turn = path.read_bytes(), itertools.cycle(kind.hostile)
    for part, tree in kind.trees(path).items():
        for place in nodes(tree):
            for value in itertools.islice(turn, 3):
                path.write_bytes(whole)
                kind.write(path, part, altered(tree, place, value))
                refused(lambda: kind.read(path))


def test_random_attacks() -> None:
    for seed in range(150):
        attack(seed)


@linux
def test_no_attack_takes_memory() -> None:
    """Under a limit of half a gigabyte: what cannot be had is a failure there."""
    command = [sys.executable, attacks_files.__file__, "1000", "100"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr


def test_an_attack_that_succeeds_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that believes every byte does not pass."""
    believes = KINDS["masks"]._replace(read=Path.read_bytes, trees=lambda path: {})
    monkeypatch.setattr(attacks_files, "KINDS", {"masks": believes})
    with pytest.raises(AssertionError, match="masks"):
        attack(0)


@pytest.mark.parametrize(
    "text",
    [
        b"[" * DEEP,
        b'{"a":' * DEEP,
        b'{"config": ' + b"[" * DEEP + b"]" * DEEP + b"}",
        b'{"config": {"model": ' + b'{"a":' * DEEP,
    ],
)
def test_deep_nesting(text: bytes, tmp_path: Path) -> None:
    for name in ("config.json", "result.json", "engine.json", "sums.json"):
        path = tmp_path / name
        path.write_bytes(text)
        with pytest.raises(snip.FileError, match="damaged"):
            read_json(path)
    (tmp_path / "metrics.jsonl").write_bytes(text + b"\n")
    with pytest.raises(snip.FileError, match="damaged"):
        read_metrics(tmp_path / "metrics.jsonl")


@pytest.mark.parametrize("name", ["compact", "masks"])
def test_deep_nesting_in_a_header(name: str, tmp_path: Path) -> None:
    path = KINDS[name].make(tmp_path)
    deep: list = []
    for _ in range(900):
        deep = [deep]
    KINDS[name].write(path, "provenance", {"uses": deep})
    assert refused(lambda: KINDS[name].read(path)) == (True, None)


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_what_is_no_ordinary_file_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "it"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    for read in (
        read_json, read_metrics, lambda path: read_bytes(path, most=9), sha256, snip.Masks.load,
        load_checkpoint,
        lambda path: compact.load(path, torch.nn.Linear(2, 2)),
        read_weights,
    ):  # fmt: skip
        with pytest.raises(snip.FileError):
            read(path)
    assert Timings(path).seconds == {}


def test_a_pipe_in_place_of_a_file_that_is_written(tmp_path: Path) -> None:
    for name in (".lock", "metrics.jsonl"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(snip.FileError, match="no ordinary file"), locked(tmp_path):
        pass
    with pytest.raises(snip.FileError, match="no ordinary file"):
        append_line(tmp_path / "metrics.jsonl", "{}")


def test_a_pipe_in_a_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SNIP_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    (folder / "data_batch_1.bin").write_bytes(bytes(3073))
    os.mkfifo(folder / "data_batch_2.bin")
    data_refused("cifar-10", tmp_path, "data_batch_2.bin", "no ordinary file")
    os.mkfifo(tmp_path / "train.parquet")
    (tmp_path / "test.parquet").write_bytes(b"")
    data_refused("fashion-mnist", tmp_path, "train.parquet", "no ordinary file")
