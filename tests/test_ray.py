"""`snip reproduce --on ray`: a real cluster of this machine, with a worker killed in the middle."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from cli_fixtures import Snip
from needed import needed
from processes import PATIENCE, SEES_THIS_TREE, free_port, hear_signals
from test_reproduce_killed import TINY, Process, has_begun, start, wait_until

from snip.common.lock import is_held
from snip.experiments.kinds import scaled
from snip.experiments.sweep.work import DONE, Place, attempt
from snip.runs import RunConfig, RunResult
from snip.training.journal import CHECKPOINT, METRICS

SCALE = 0.1  # 7,500 steps: long enough to be found at work in, and killed
LONGER = scaled(RunConfig("lenet-300-100", 0.95, protocol="redraw"), SCALE)
RAY = [sys.executable, "-m", "ray.scripts.scripts"]


@pytest.fixture
def _ray(monkeypatch: pytest.MonkeyPatch) -> None:
    needed("ray")
    # Ray's workers run at niceness 15: on a busy machine they would not even start within minutes.
    monkeypatch.setenv("RAY_worker_niceness", "0")


def is_listening(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def saved_by_ctrl_c(folder: Path, place: Path) -> str:
    """The evaluations of a run that was begun without Ray and saved: a run has no checkpoint by
    itself before its twentieth second."""
    process = start(folder, "--seeds", "1", scale=SCALE)
    wait_until(lambda: has_begun(place), process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE)
    assert (place / CHECKPOINT).exists()
    return (place / METRICS).read_text()


def family(process: Process) -> dict[int, str]:
    """The commands of this process and of all that it has started."""
    lines = subprocess.run(
        ["ps", "-ww", "-e", "-o", "pid=", "-o", "ppid=", "-o", "args="],
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    rows = [line.split(maxsplit=2) for line in lines]
    known = {process.pid}
    for _ in range(5):  # generations
        known |= {int(pid) for pid, parent, *_ in rows if int(parent) in known}
    return {int(pid): " ".join(words) for pid, _, *words in rows if int(pid) in known}


def workers(process: Process) -> list[int]:
    """Ray's workers that are at a run."""
    return [pid for pid, words in family(process).items() if words.startswith("ray::_attempt")]


@pytest.mark.usefixtures("_ray")
def test_a_lost_worker_is_replaced_and_nothing_is_run_twice(tmp_path: Path, snip: Snip) -> None:
    place = tmp_path / "runs" / LONGER.folder_name
    written = saved_by_ctrl_c(tmp_path, place)
    process = start(tmp_path, "--seeds", "1", "--on", "ray", scale=SCALE)
    try:
        wait_until(lambda: (tmp_path / "runs/.ray.json").exists(), process)
        wait_until(lambda: is_held(place), process)
        code, out, _ = snip("runs", "--out", tmp_path / "runs")
        assert code == 0
        assert "ago: 1 node with 1 CPU, 1 run at work, 0 wait" in out
        assert is_held(place)
        (raylet,) = [words for words in family(process).values() if "/raylet " in words]
        assert "--node_ip_address=127.0.0.1 " in raylet  # nobody else can reach it
        (lost,) = workers(process)
        os.kill(lost, signal.SIGKILL)
        _, error = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 0, error
    assert f"the worker of {place.name} was lost" in error
    assert "goes on from its last checkpoint" in error
    assert not (tmp_path / "runs/.ray.json").exists()
    assert (place / METRICS).read_text().startswith(written)  # resumed, not begun anew
    result = RunResult.read(place)
    assert attempt(LONGER, Place(tmp_path / "alone")).kind == DONE  # without Ray
    alone = RunResult.read(tmp_path / "alone" / LONGER.folder_name)
    assert (result.test_error, result.test_loss) == (alone.test_error, alone.test_loss)
    assert {p.name for p in place.iterdir()} == {p.name for p in alone.folder.iterdir()}
    before = (place / "result.json").stat().st_mtime_ns
    again = start(tmp_path, "--seeds", "1", "--on", "ray", scale=SCALE)
    assert again.wait(PATIENCE) == 0
    again.communicate()
    assert (place / "result.json").stat().st_mtime_ns == before


@pytest.mark.usefixtures("_ray")
def test_a_cluster_that_runs_already_is_used_by_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Ray asks who comes by its address. The cluster and the command get a token of this test's own.
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    ports = {name: str(free_port()) for name in ("port", "ray-client-server-port")}
    head = [*RAY, "start", "--head", "--block", "--num-cpus", "1", "--include-dashboard", "false"]
    # Paths of sockets may have 107 bytes, so that the test's own folder is too deep for them.
    short = tempfile.mkdtemp(prefix="snip-ray-")
    head += ["--node-ip-address", "127.0.0.1", "--temp-dir", short]
    flags = [word for name, port in ports.items() for word in (f"--{name}", port)]
    environment = os.environ | SEES_THIS_TREE | {"RAY_USAGE_STATS_ENABLED": "0"}
    environment["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # or it takes another address
    with (tmp_path / "log").open("w") as log:
        cluster = subprocess.Popen(
            [*head, *flags], env=environment, stdout=log, stderr=log, preexec_fn=hear_signals
        )
    try:
        wait_until(lambda: is_listening(int(ports["ray-client-server-port"])), cluster)
        on = f"ray://127.0.0.1:{ports['ray-client-server-port']}"
        alone = [sys.executable, "-c", f"import ray; ray.init(address={on!r})"]
        tried = subprocess.run(alone, env=environment, capture_output=True, timeout=PATIENCE)
        if tried.returncode != 0:  # On some machines Ray does not reach its own cluster like this.
            pytest.skip("Ray's own client does not reach a cluster of Ray's on this machine")
        process = start(tmp_path, "--seeds", "1", "--on", on, scale=0.0002)
        _, error = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, error
        assert RunResult.read(tmp_path / "runs" / TINY.folder_name).kept > 0
        assert not (tmp_path / "runs/.ray.json").exists()
    finally:
        cluster.send_signal(signal.SIGINT)  # upon which it ends all that it has started
        cluster.wait(PATIENCE)
        shutil.rmtree(short)


@pytest.mark.usefixtures("empty_folder")
def test_a_note_of_the_cluster_that_is_damaged_is_a_sentence(snip: Snip) -> None:
    Path("runs").mkdir()
    for text in ("{}", "[]", '{"time": "noon"}', '{"time": 0, "nodes": null}'):
        Path("runs/.ray.json").write_text(text)
        code, out, error = snip("runs", "--out", "runs")
        assert code == 2
        assert "0 runs" in out
        assert "runs/.ray.json is damaged or of another version" in error
        assert "delete it" in error


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
