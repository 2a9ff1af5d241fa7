"""Golden values: masks, weights, names of runs and files are those of the first version.

`golden_values.py` computes them and writes tests/golden; CONTRIBUTING.md says when it may.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from typing import Any

import pytest
from golden_files import HALF_DONE
from golden_values import SECTIONS, compute, is_close, made_with, read

ROWS = [(section, name) for section in SECTIONS for name in read(section)]
Found = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="session")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Values of a section now, computed once for all processes of pytest-xdist."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent

    def values(section: str) -> dict[str, Any]:
        path = root / f"golden-{section}.json"
        with (root / f"golden-{section}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                path.write_text("{}")  # if computing fails, it is not tried again for each row
                compute(section, path)
        return json.loads(path.read_text(encoding="utf-8"))

    return values


@pytest.mark.parametrize(("section", "name"), ROWS)
def test_value_is_that_of_the_first_version(section: str, name: str, found: Found) -> None:
    golden, value = read(section)[name], found(section).get(name)
    if is_close(golden, value):
        return
    before, now = read("made_with"), made_with()
    if value is not None and "failed" not in value and before != now:
        pytest.skip(f"it differs, but it was computed by {before} and not by {now}")
    assert value == golden


@pytest.mark.parametrize("section", SECTIONS)
def test_every_row_has_a_golden_value(section: str, found: Found) -> None:
    assert set(found(section)) == set(read(section))


@pytest.mark.parametrize("name", HALF_DONE)
def test_half_done_run_ends_as_one_that_was_never_stopped(name: str) -> None:
    whole = read("training")[name]
    stopped = [run for row, run in read("files").items() if row.endswith(f"half-done {name}")]
    assert stopped
    for run in stopped:
        assert run["states"] == ["stopped"]
        assert {key: run[key] for key in whole} == whole
