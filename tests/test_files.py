"""Every write is whole or does not happen."""

import errno
import os
from pathlib import Path

import pytest

import snip
from snip.files import append_line, sha256, write_bytes, write_text, write_with


def test_a_write_replaces_the_whole_file(tmp_path):
    path = tmp_path / "deep" / "file.txt"
    write_text(path, "one")
    write_text(path, "two")
    assert path.read_text() == "two"
    assert os.listdir(path.parent) == ["file.txt"]


def test_a_failed_write_leaves_the_old_content_and_no_litter(tmp_path):
    path = tmp_path / "file.bin"
    write_bytes(path, b"old")

    def fails(temporary: Path) -> None:
        temporary.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(snip.FileError, match=r"cannot write .*the disk is full"):
        write_with(path, fails)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file.bin"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_really_full_device():
    with pytest.raises(snip.FileError, match="the disk is full"):
        append_line("/dev/full", "x" * 100_000)


def test_a_device_or_a_folder_is_not_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "pipe"):
        with pytest.raises(snip.FileError, match="no ordinary file"):
            write_text(tmp_path / name, "x")
    assert (tmp_path / "pipe").is_fifo()


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(snip.FileError, match="choose another place"):
        write_text(tmp_path / "file" / "below", "x")


def test_lines_and_digests(tmp_path):
    append_line(tmp_path / "a", "one")
    append_line(tmp_path / "a", "two")
    assert (tmp_path / "a").read_text() == "one\ntwo\n"
    expected = "c3f9c8c283a2b1f2f1896f27a01cbe3cddc0c9d93f752e4639035a0f5b36f6e8"
    assert sha256(tmp_path / "a") == expected
