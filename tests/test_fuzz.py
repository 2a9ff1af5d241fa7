"""No chance decides whether the tests pass; `make fuzz` takes chances that can be repeated."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from hypothesis import settings

HERE = Path(__file__).parent
FRAGILE = """
import torch
from hypothesis import given, strategies as st

@given(st.integers(0, 2**40))
def test_fails_sooner_or_later(number):
    assert torch.rand(()) >= 0  # reached by every example
    assert number < 1000, "found"
"""


def fuzz(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, folder / "fuzz.py", *flags],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])},
    )


def test_the_usual_examples_are_the_same_in_every_run() -> None:
    usual = settings.get_profile("repeatable")
    assert usual.derandomize
    assert usual.database is None
    assert usual.deadline is None
    assert not settings.get_profile("fuzz").derandomize


def test_a_failure_is_found_named_and_found_again(tmp_path: Path) -> None:
    for name in ("fuzz.py", "conftest.py"):
        shutil.copy(HERE / name, tmp_path / name)
    (tmp_path / "test_fragile.py").write_text(FRAGILE)
    first = fuzz(tmp_path, "0")
    assert first.returncode == 1, first.stdout + first.stderr
    seed = first.stdout.split()[1]
    assert f"failed with seed {seed}; again: python tests/fuzz.py --seed {seed}" in first.stdout
    again = fuzz(tmp_path, "--seed", seed)
    assert again.returncode == 1
    assert "found" in again.stdout


def test_a_round_that_passes_is_no_failure(tmp_path: Path) -> None:
    for name in ("fuzz.py", "conftest.py"):
        shutil.copy(HERE / name, tmp_path / name)
    (tmp_path / "test_sound.py").write_text(FRAGILE.replace("number < 1000", "number >= 0"))
    done = fuzz(tmp_path, "0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 rounds passed" in done.stdout
