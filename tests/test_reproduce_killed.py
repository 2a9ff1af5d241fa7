"""Real processes of `snip reproduce`: killed, interrupted, two at once, and on a full disk."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from processes import PATIENCE, SEES_THIS_TREE

from snip.common.lock import is_held, locked
from snip.experiments.kinds import scaled
from snip.experiments.sweep.work import BUSY, FAILED, FULL, Place, attempt
from snip.runs import RunConfig, RunResult
from snip.runs.folder import FINISHED, state_of
from snip.training.interrupts import UNTOUCHED
from snip.training.journal import CHECKPOINT, METRICS

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL here")

SCALE = 0.04  # 3,000 steps: long enough to be killed in, short enough to be finished
CONFIG = scaled(RunConfig("lenet-300-100", 0.95, protocol="redraw"), SCALE)
TINY = scaled(RunConfig("lenet-300-100", 0.95, protocol="redraw"), 0.0002)
Process = subprocess.Popen[str]


def start(folder: Path, *flags: str, scale: float = SCALE, out: str = "runs") -> Process:
    """`snip reproduce table1` of SNIP's row at 95% in a process that hears all signals."""

    def hear() -> None:
        for number in UNTOUCHED:
            signal.signal(number, signal.SIG_DFL)

    rows = ["--only", "snip-0.95", "--scale", str(scale), "--out", out, *flags]
    return subprocess.Popen(
        [sys.executable, "-m", "snip", "reproduce", "table1", *rows],
        cwd=folder,
        env=os.environ | SEES_THIS_TREE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hear,
    )


def wait_until(happened: Callable[[], bool], running: Process | None = None) -> None:
    end = time.monotonic() + PATIENCE
    while not happened():
        assert running is None or running.poll() is None, running.communicate()[1]
        assert time.monotonic() < end
        time.sleep(0.05)


def has_begun(place: Path) -> bool:
    return (place / METRICS).is_file() and (place / METRICS).read_text() != ""


def children(process: Process) -> list[int]:
    """The processes that this one has started, from the system's table."""
    listed = subprocess.run(
        ["ps", "-ww", "-o", "pid=", "-o", "args=", "--ppid", str(process.pid)],
        capture_output=True,
        text=True,
    )
    lines = (line.split(maxsplit=1) for line in listed.stdout.splitlines())
    return [int(pid) for pid, command in lines if "spawn_main" in command]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    folder = tmp_path_factory.mktemp("undisturbed")
    assert start(folder, "--seeds", "1").wait(PATIENCE) == 0
    return RunResult.read(folder / "runs" / CONFIG.folder_name)


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[tuple[Process, Path]]:
    """A command whose run has come to its first evaluation, and the run's folder."""
    process, place = start(tmp_path, "--seeds", "1"), tmp_path / "runs" / CONFIG.folder_name
    wait_until(lambda: has_begun(place), process)
    yield process, place
    process.kill()
    process.communicate()


def assert_finished_as(undisturbed: RunResult, folder: Path) -> None:
    """The same command goes on, and comes to the same numbers."""
    assert start(folder, "--seeds", "1").wait(PATIENCE) == 0
    result = RunResult.read(folder / "runs" / CONFIG.folder_name)
    assert (result.test_error, result.test_loss) == (undisturbed.test_error, undisturbed.test_loss)
    record = json.loads((folder / f"results/table1-scale-{SCALE:g}.json").read_text())
    assert record["done"] == 1
    assert (folder / f"results/table1-scale-{SCALE:g}.md").exists()


def test_killed_in_the_middle_it_goes_on(
    begun: tuple[Process, Path], undisturbed: RunResult, tmp_path: Path
) -> None:
    process, place = begun
    process.kill()
    assert process.wait(PATIENCE) == -signal.SIGKILL
    wait_until(lambda: not is_held(place))  # its worker ends too, after a checkpoint
    assert (place / CHECKPOINT).exists()
    assert state_of(place) != FINISHED
    assert_finished_as(undisturbed, tmp_path)


def test_ctrl_c_saves_and_ends_the_workers(
    begun: tuple[Process, Path], undisturbed: RunResult, tmp_path: Path
) -> None:
    process, place = begun
    workers = children(process)
    assert len(workers) == 1
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 130
    assert not is_held(place)
    assert not Path(f"/proc/{workers[0]}").exists()
    assert (place / CHECKPOINT).exists()
    assert_finished_as(undisturbed, tmp_path)


def test_a_worker_that_dies_is_told_and_its_run_goes_on(tmp_path: Path) -> None:
    process = start(tmp_path, "--seeds", "2")
    place = tmp_path / "runs" / CONFIG.folder_name
    wait_until(lambda: has_begun(place), process)
    os.kill(children(process)[0], signal.SIGKILL)
    _, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert "ended by itself (exit code -9)" in error
    assert "try fewer --jobs): it goes on from its last checkpoint." in error
    assert state_of(place) == FINISHED
    second = tmp_path / "runs" / scaled(RunConfig("lenet-300-100", 0.95, protocol="redraw", seed=1),
        SCALE).folder_name  # fmt: skip
    assert state_of(second) == FINISHED


def test_a_run_in_other_hands_is_left_for_later(tmp_path: Path) -> None:
    first = tmp_path / "runs" / TINY.folder_name
    with locked(first):
        assert attempt(TINY, Place(tmp_path / "runs")).kind == BUSY
        process = start(tmp_path, "--seeds", "2", scale=0.0002)
        others = tmp_path / "runs"
        wait_until(lambda: any(state_of(p) == FINISHED for p in others.iterdir()), process)
        assert state_of(first) != FINISHED
    assert process.wait(PATIENCE) == 0
    assert state_of(first) == FINISHED
    process.communicate()


def test_two_commands_share_the_work(tmp_path: Path) -> None:
    processes = [start(tmp_path, "--seeds", "3", scale=0.01) for _ in range(2)]
    assert [process.wait(PATIENCE) for process in processes] == [0, 0]
    record = json.loads((tmp_path / "results/table1-scale-0.01.json").read_text())
    assert record["done"] == 3
    for process in processes:
        process.communicate()


def test_a_full_disk_stops_all_runs_with_a_sentence(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(small)]
    if os.name != "posix" or os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root may mount a small disk")
    try:
        outcome = attempt(TINY, Place(small))
        assert outcome.kind == FULL
        process = start(tmp_path, "--seeds", "3", scale=0.0002, out=str(small))
        _, error = process.communicate(timeout=PATIENCE)
        assert process.returncode == 2
        assert "the disk is full" in error
        assert "All runs were stopped" in error
        assert len(list(small.glob("lenet*"))) == 1  # the others were not even begun
    finally:
        subprocess.run(["umount", str(small)], check=True)
    assert start(tmp_path, "--seeds", "1", scale=0.0002).wait(PATIENCE) == 0


def test_a_run_that_cannot_be_done_is_a_sentence(tmp_path: Path) -> None:
    config = scaled(RunConfig("lenet-300-100", 0.9, score_batch_size=60_000), 0.0002)
    outcome = attempt(config, Place(tmp_path / "runs"))
    assert outcome.kind == FAILED
    assert "ask for fewer" in outcome.sentence
