"""Which code made a result: a fingerprint of the sources, and their commit."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from snip.common import machine
from snip.common.text import first_sentence


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A small package in place of ours, in src/ of a folder that is no repository."""
    folder = tmp_path / "src" / "small"
    for name in ("one.py", "cli/shown.py", "native/two.cpp", "table.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    monkeypatch.setattr(machine, "PACKAGE", folder)
    machine.code_digest.cache_clear()
    machine.commit.cache_clear()
    yield folder
    machine.code_digest.cache_clear()
    machine.commit.cache_clear()


@pytest.mark.parametrize(
    ("name", "changes"),
    [("one.py", True), ("native/two.cpp", True), ("cli/shown.py", False), ("table.json", False)],
)
def test_the_fingerprint_is_of_what_makes_results(package: Path, name: str, changes: bool) -> None:
    before = machine.code_digest()
    (package / name).write_text("# changed")
    machine.code_digest.cache_clear()
    assert (machine.code_digest() != before) == changes


def test_the_commit_of_a_source_tree(package: Path) -> None:
    assert machine.commit() == ""  # no repository
    top = package.parents[1]
    _git(top, "init", "-q")
    _git(top, "add", ".")
    _git(top, "commit", "-qm", "first")
    machine.commit.cache_clear()
    found = machine.commit()
    assert found == _git(top, "rev-parse", "--short", "HEAD")
    (package / "one.py").write_text("# changed")
    machine.commit.cache_clear()
    assert machine.commit() == f"{found}+"


def test_a_package_inside_somebody_elses_repository_has_no_commit(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = package.parents[1]
    _git(top, "init", "-q")
    _git(top, "add", ".")
    _git(top, "commit", "-qm", "first")
    monkeypatch.setattr(machine, "PACKAGE", package / "native")
    assert machine.commit() == ""


def _git(folder: Path, *arguments: str) -> str:
    someone = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
    command = ["git", "-C", str(folder), *someone, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/me/runs/a_b.json is damaged (no x): delete it. Then run again.",
         "a_b.json is damaged (no x): delete it."),
        ("cannot write runs/one/two.txt: no room.", "cannot write two.txt: no room."),
        ("sparsity is 1.5: give a number below 1.", "sparsity is 1.5: give a number below 1."),
        ("C:\\me\\runs\\x.json is a folder", "x.json is a folder"),
        ("first line\nsecond", "first line"),
        ("0.5 and/or 3 / 4 remain! Really.", "0.5 or 3 / 4 remain!"),
        ("", ""),
    ],
)  # fmt: skip
def test_first_sentences_name_no_folder(text: str, expected: str) -> None:
    assert first_sentence(text) == expected
