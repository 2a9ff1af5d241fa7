"""`snip reproduce --on ray`: a real cluster of this machine, with a worker killed in the middle."""

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from cli_fixtures import Snip
from processes import PATIENCE
from test_reproduce_killed import CONFIG, SCALE, Process, has_begun, start, wait_until

from snip.experiments.work import DONE, Place, attempt
from snip.runs import RunResult
from snip.training.lock import is_held

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")


def workers(process: Process) -> list[int]:
    """Ray's workers that are at a run, among all that this process has started."""
    lines = subprocess.run(
        ["ps", "-ww", "-e", "-o", "pid=", "-o", "ppid=", "-o", "args="],
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    rows = [line.split(maxsplit=2) for line in lines]
    family = {process.pid}
    for _ in range(5):  # generations
        family |= {int(pid) for pid, parent, *_ in rows if int(parent) in family}
    return [
        int(pid)
        for pid, _, *words in rows
        if int(pid) in family and words and words[0].startswith("ray::_attempt")
    ]


@needs_ray
def test_a_lost_worker_is_replaced_and_nothing_is_run_twice(tmp_path: Path, snip: Snip) -> None:
    place = tmp_path / "runs" / CONFIG.folder_name
    process = start(tmp_path, "--seeds", "1", "--on", "ray")
    try:
        wait_until(lambda: has_begun(place), process)
        wait_until(lambda: (tmp_path / "runs/.ray.json").exists(), process)
        code, out, _ = snip("runs", "--out", tmp_path / "runs")
        assert code == 0
        assert "ago: 1 nodes with 1 CPUs, 1 runs at work, 0 wait" in out
        assert is_held(place)
        (lost,) = workers(process)
        os.kill(lost, signal.SIGKILL)
        _, error = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 0, error
    assert f"the worker of {place.name} was lost" in error
    assert "goes on from its last checkpoint" in error
    assert not (tmp_path / "runs/.ray.json").exists()
    result = RunResult.read(place)
    assert attempt(CONFIG, Place(tmp_path / "alone")).kind == DONE  # without Ray
    alone = RunResult.read(tmp_path / "alone" / CONFIG.folder_name)
    assert (result.test_error, result.test_loss) == (alone.test_error, alone.test_loss)
    assert {p.name for p in place.iterdir()} == {p.name for p in alone.folder.iterdir()}
    before = (place / "result.json").stat().st_mtime_ns
    again = start(tmp_path, "--seeds", "1", "--on", "ray")
    assert again.wait(PATIENCE) == 0
    again.communicate()
    assert (place / "result.json").stat().st_mtime_ns == before


@pytest.mark.usefixtures("empty_folder")
@pytest.mark.parametrize("on", ["rays", "ray://", "localhost"])
def test_a_place_that_is_none(snip: Snip, on: str) -> None:
    code, _, error = snip("reproduce", "table1", "--scale", SCALE, "--on", on)
    assert code == 2
    assert f"--on is '{on}': give local, ray" in error
    assert not Path("runs").exists()


@pytest.mark.usefixtures("empty_folder")
def test_a_missing_library_is_told(snip: Snip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    only = ("--only", "snip-0.95", "--seeds", 1, "--scale", 0.0002)
    code, _, error = snip("reproduce", "table1", *only, "--on", "ray")
    assert code == 2
    assert "pip install 'snip-prune[ray]'" in error
