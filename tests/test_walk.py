"""The walk of data through packages: what it counts, and that it leaves no trace."""

import sys
from pathlib import Path

import pytest
from walk import JOURNEYS, walked

FILES = {
    "walked/a/one.py": "from walked.b.two import g\ndef f(): return [g() for _ in '12']\n",
    "walked/b/two.py": "def g(): return max('cd', key=lambda c: c)\n",
}


def test_calls_files_and_changes_of_package_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    from walked.a.one import f

    before = sys.getprofile()
    walk = walked(f, tmp_path)
    assert sys.getprofile() is before
    comprehensions = walk.most.get("walked.a.one:<listcomp>", 0)  # inlined since Python 3.12
    assert walk.calls == 7 + comprehensions  # f, and twice g with two calls of its key
    assert (walk.files, walk.packages, walk.changes) == (2, 2, 1)
    assert walked(lambda: sorted("ab"), tmp_path).calls == 0


def test_pruning_walks_through_several_packages() -> None:
    walk = walked(JOURNEYS["prune"][1]())
    assert walk.calls > walk.changes > walk.packages > 1
