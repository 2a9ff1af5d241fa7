"""No chance decides whether the tests pass; `make fuzz` takes chances that can be repeated."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import attacks_kills
import attacks_networks
import pytest
import torch
from hypothesis import settings
from torch import nn

import snip
from snip.engine.kernels.library import available

needs_kernels = pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set")
HERE = Path(__file__).parent
FRAGILE = """
import torch
from hypothesis import given, strategies as st

@given(st.integers(0, 2**40))
def test_fails_sooner_or_later(number):
    assert torch.rand(()) >= 0  # reached by every example
    assert number < 1000, "found"
"""


SOUND = FRAGILE.replace("number < 1000", "number >= 0")
FRAGILE_ATTACK = """
import os

def attack(seed):
    if seed % 9 == 4:
        {failure}
"""


def set_up(folder: Path, property_test: str) -> None:
    """A folder of tests of its own, with one property test."""
    for name in ("fuzz.py", "conftest.py"):
        shutil.copy(HERE / name, folder / name)
    (folder / "test_property.py").write_text(property_test)


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
    set_up(tmp_path, FRAGILE)
    first = fuzz(tmp_path, "0")
    assert first.returncode == 1, first.stdout + first.stderr
    seed = first.stdout.split()[1]
    assert f"failed with seed {seed}; again: python tests/fuzz.py --seed {seed}" in first.stdout
    again = fuzz(tmp_path, "--seed", seed)
    assert again.returncode == 1
    assert "found" in again.stdout


def test_a_round_that_passes_is_no_failure(tmp_path: Path) -> None:
    set_up(tmp_path, SOUND)
    done = fuzz(tmp_path, "0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 rounds passed" in done.stdout


@pytest.mark.parametrize("failure", ["raise ValueError('got past')", "os.abort()"])
def test_an_attack_that_succeeds_is_named_and_repeated(tmp_path: Path, failure: str) -> None:
    set_up(tmp_path, SOUND)
    (tmp_path / "attacks_fragile.py").write_text(FRAGILE_ATTACK.format(failure=failure))
    first = fuzz(tmp_path, "--seed", "18")
    assert first.returncode == 1
    said = "fragile failed with seed 22; again: python tests/fuzz.py --seed 22 --kind fragile"
    assert said in first.stdout
    assert first.stdout.endswith("1 rounds until a failure: properties 1, fragile 5\n")
    assert fuzz(tmp_path, "--seed", "22", "--kind", "fragile").returncode not in (0, 2)
    assert fuzz(tmp_path, "--seed", "23", "--kind", "fragile").returncode == 0
    assert fuzz(tmp_path, "--kind", "fragile").returncode == 2  # which of them?


def test_attacks_that_pass_are_counted(tmp_path: Path) -> None:
    set_up(tmp_path, SOUND)
    (tmp_path / "attacks_sound.py").write_text(FRAGILE_ATTACK.format(failure="pass"))
    done = fuzz(tmp_path, "0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("1 rounds passed: properties 1, sound 100\n")


@needs_kernels
@pytest.mark.parametrize("seed", range(6))
def test_random_networks_compute_what_the_dense_ones_do(seed: int) -> None:
    attacks_networks.attack(seed)


@needs_kernels
def test_a_network_that_is_off_by_a_thousandth_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = snip.accelerate

    def wrong(*args: object, **settings: object) -> nn.Module:
        fast = right(*args, **settings)  # type: ignore[arg-type]
        with torch.no_grad():
            for parameter in fast.parameters():
                parameter.mul_(1.001)
        return fast

    monkeypatch.setattr(snip, "accelerate", wrong)
    for seed in range(6):
        with pytest.raises(AssertionError, match="is off by"):
            attacks_networks.attack(seed)


def test_a_killed_run_is_compared_with_a_whole_one() -> None:
    attacks_kills.attack(seed=7)
