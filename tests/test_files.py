"""Every write is whole or does not happen."""

import errno
import os
from pathlib import Path

import pytest
import torch

import snip
from snip.common.files import (
    append_line,
    read_json,
    remove_leftovers,
    sha256,
    write_bytes,
    write_json,
    write_text,
    write_with,
)


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


def test_json_ends_with_a_line_break(tmp_path):
    write_json(tmp_path / "a.json", {"b": [1]})
    assert (tmp_path / "a.json").read_text() == '{\n  "b": [\n    1\n  ]\n}\n'


def test_lines_and_digests(tmp_path):
    append_line(tmp_path / "a", "one")
    append_line(tmp_path / "a", "two")
    assert (tmp_path / "a").read_text() == "one\ntwo\n"
    expected = "c3f9c8c283a2b1f2f1896f27a01cbe3cddc0c9d93f752e4639035a0f5b36f6e8"
    assert sha256(tmp_path / "a") == expected


def test_a_link_stays_a_link_and_its_target_is_written(tmp_path):
    (tmp_path / "disk").mkdir()
    target, link = tmp_path / "disk" / "target.txt", tmp_path / "link.txt"
    link.symlink_to(target)
    for text in ("first", "second"):  # the first through a link to nothing
        write_text(link, text)
        assert link.is_symlink()
        assert target.read_text() == text
    assert os.listdir(tmp_path / "disk") == ["target.txt"]


def test_permissions_follow_the_umask_which_is_never_touched(tmp_path, monkeypatch):
    before = os.umask(0o027)
    try:
        monkeypatch.setattr(os, "umask", lambda _: pytest.fail("it is the whole process's"))
        write_text(tmp_path / "file", "x")
    finally:
        monkeypatch.undo()
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


def test_a_place_that_cannot_even_be_looked_at(tmp_path):
    with pytest.raises(snip.FileError, match="cannot write"):
        write_text(tmp_path / ("x" * 300), "x")
    (tmp_path / "round").symlink_to(tmp_path / "round")
    with pytest.raises(snip.FileError, match="cannot write"):
        write_text(tmp_path / "round" / "file", "x")


def test_the_suffix_stays_and_only_our_own_leftovers_go(tmp_path):
    seen = []
    write_with(tmp_path / "array.npy", lambda path: (seen.append(path), path.touch()))
    assert seen[0].suffix == ".npy"
    for name in (seen[0].name, ".config.mine.json", ".array.old.npy"):
        (tmp_path / name).touch()
    remove_leftovers(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [".array.old.npy", ".config.mine.json", "array.npy"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_damaged_json_is_refused(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(snip.FileError, match=r"a\.json is damaged"):
        read_json(tmp_path / "a.json")
    with pytest.raises(snip.FileError, match="there is no file"):
        read_json(tmp_path / "none.json")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("elements", [3, 100_000])
def test_torch_passes_on_why_a_file_cannot_be_written(tmp_path, elements):
    def fails(temporary: Path) -> None:
        with open("/dev/full", "wb") as file:
            torch.save(torch.ones(elements), file)

    with pytest.raises(snip.FileError, match="the disk is full"):
        write_with(tmp_path / "m", fails)
    assert os.listdir(tmp_path) == []


def test_one_function_says_that_a_file_is_damaged():
    """A second sentence for the same mistake would soon say something else."""
    source = Path(snip.__file__).parent
    found = [p.name for p in source.rglob("*.py") if "is damaged" in p.read_text()]
    assert found == ["files.py"]
