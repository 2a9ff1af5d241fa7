"""Files that vanish in mid-run and disks that fill up: noticed, said, and nothing is half-made."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_fixtures import Snip
from processes import PATIENCE, SEES_THIS_TREE, start_run, wait_for_metrics
from torch import nn
from training_parts import chancy_network, repeatable

from snip.common import files
from snip.common.errors import FileError
from snip.data import Dataset, load
from snip.runs import RunConfig, run
from snip.training import Metrics, TrainConfig, load_checkpoint, train
from snip.training.lock import locked

resource = pytest.importorskip("resource")

CONFIG = TrainConfig(iterations=12, lr_drops=(), batch_size=50, eval_every=4)


@pytest.fixture(scope="module")
def mnist() -> Dataset:
    return load("mnist").subset(500, 200)


def at(iteration: int, action: Callable[[], object]) -> Callable[[Metrics], None]:
    """Do something after one evaluation; the files are then closed, and the next write is near."""

    def on_metrics(metrics: Metrics) -> None:
        if metrics.iteration == iteration:
            action()

    return on_metrics


def test_a_deleted_folder_is_noticed_and_not_made_again(mnist: Dataset, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(FileError, match=r"run folder .*run .*was deleted, moved or replaced"):
        train(
            chancy_network(), mnist, CONFIG,
            folder=folder, on_metrics=at(4, lambda: shutil.rmtree(folder)),
        )  # fmt: skip
    assert not folder.exists()


def test_a_folder_that_another_process_has_made_again_is_left_alone(
    mnist: Dataset, tmp_path: Path
) -> None:
    folder = tmp_path / "run"

    def replace() -> None:
        shutil.rmtree(folder)
        folder.mkdir()
        for name in (".lock", "metrics.jsonl"):
            (folder / name).write_text("")

    with pytest.raises(FileError, match="deleted, moved or replaced"):
        train(chancy_network(), mnist, CONFIG, folder=folder, on_metrics=at(4, replace))
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        ".lock": "",
        "metrics.jsonl": "",
    }


def test_a_moved_folder_goes_on_when_it_is_back(mnist: Dataset, tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    with pytest.raises(FileError, match="Put the folder back"):
        train(
            chancy_network(), mnist, CONFIG,
            folder=folder, checkpoint_seconds=0, on_metrics=at(8, lambda: folder.rename(elsewhere)),
        )  # fmt: skip
    assert not folder.exists()
    elsewhere.rename(folder)
    assert_same_end(mnist, folder)


@pytest.mark.parametrize("seconds", [0.0, 1000.0])  # the next write is a checkpoint, or a line
def test_deleted_metrics_are_noticed_and_written_again_by_the_next_run(
    mnist: Dataset, tmp_path: Path, seconds: float
) -> None:
    path = tmp_path / "metrics.jsonl"
    safe = (
        r"The last good checkpoint is .*checkpoint\.pt, at iteration 7: running again goes on"
        if seconds == 0
        else "There is no checkpoint: running again starts over"
    )
    with pytest.raises(FileError, match=rf"metrics\.jsonl was deleted while .*{safe}"):
        train(
            chancy_network(), mnist, CONFIG,
            folder=tmp_path, checkpoint_seconds=seconds, on_metrics=at(8, path.unlink),
        )  # fmt: skip
    assert not path.exists()
    assert_same_end(mnist, tmp_path)
    assert len(path.read_text().splitlines()) == 3


def linked(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/null")


def replaced(path: Path) -> None:
    copied = path.with_name("copy")
    shutil.copy(path, copied)
    copied.replace(path)


@pytest.mark.parametrize(
    "change",
    [
        linked,
        replaced,
        lambda path: path.write_text(""),
        lambda path: path.write_text(path.read_text() + "x"),
        lambda path: (path.unlink(), path.mkdir()),
    ],
)
def test_metrics_that_somebody_else_writes_are_noticed(
    mnist: Dataset, tmp_path: Path, change: Callable[[Path], object]
) -> None:
    path = tmp_path / "metrics.jsonl"
    with pytest.raises(FileError, match=r"metrics\.jsonl was replaced or altered while"):
        train(
            chancy_network(), mnist, CONFIG,
            folder=tmp_path, on_metrics=at(8, lambda: change(path)), progress=False,
        )  # fmt: skip


def test_a_deleted_checkpoint_is_not_called_safe(mnist: Dataset, tmp_path: Path) -> None:
    def delete() -> None:
        for name in ("metrics.jsonl", "checkpoint.pt"):
            (tmp_path / name).unlink()

    with pytest.raises(FileError, match="There is no checkpoint: running again starts over"):
        train(
            chancy_network(), mnist, CONFIG,
            folder=tmp_path, checkpoint_seconds=0, on_metrics=at(8, delete),
        )  # fmt: skip


def assert_same_end(mnist: Dataset, folder: Path) -> None:
    """A training that goes on in the folder ends as one that nothing happened to."""
    resumed = train(chancy_network(), mnist, CONFIG, folder=folder)
    whole = train(chancy_network(), mnist, CONFIG)
    assert repeatable(resumed.history) == repeatable(whole.history)


@pytest.mark.parametrize("name", ["config.json", "report.json", "masks.safetensors", "engine.json"])
def test_a_deleted_file_of_a_run_is_noticed(tmp_path: Path, name: str) -> None:
    train = TrainConfig(iterations=40, eval_every=20, batch_size=20)
    config = RunConfig("lenet-300-100", 0.9, engine="sparse", train=train)
    path = tmp_path / "run" / name
    with pytest.raises(FileError, match=rf"{name} was deleted while the training ran"):
        run(config, folder=tmp_path / "run", on_metrics=at(20, path.unlink), checkpoint_seconds=0)
    if name == "config.json":
        path.write_text(json.dumps(config.to_dict()))
    run(config, folder=tmp_path / "run")  # which goes on, and puts the others back
    assert path.exists()


@pytest.mark.parametrize("what", ["folder", "metrics"])
def test_a_run_whose_files_are_deleted_says_so_and_fails(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "run"
    running = start_run(folder)
    try:
        wait_for_metrics(folder, running)
        if what == "folder":
            folder.rename(tmp_path / "gone")  # in one move: rmtree would race with the writer
        else:
            (folder / "metrics.jsonl").unlink()
        _, said = running.communicate(timeout=PATIENCE)
    finally:
        running.kill()
    assert running.returncode == 2, said
    assert said.startswith("error: ")
    assert "deleted" in said
    assert "Traceback" not in said
    assert folder.exists() == (what == "metrics")
    assert not (folder / "metrics.jsonl").exists()


def test_a_failure_after_the_folder_is_gone_keeps_its_own_words(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(tmp_path / "run"):
        _ = shutil.rmtree(tmp_path / "run"), 1 / 0


@pytest.fixture
def limit() -> Iterator[Callable[[int], None]]:
    """Limit the size of files that this process may write, until the test is over."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    silent = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, silent)


def test_a_file_that_may_not_grow_names_the_users_file_and_what_is_safe(
    mnist: Dataset, tmp_path: Path, limit: Callable[[int], None]
) -> None:
    with pytest.raises(FileError, match=r"cannot write .*checkpoint\.pt: ") as said:
        train(
            chancy_network(), mnist, CONFIG,
            folder=tmp_path, checkpoint_seconds=0, on_metrics=at(8, lambda: limit(50_000)),
        )  # fmt: skip
    assert "ulimit" in str(said.value)
    assert_plain(str(said.value))
    assert "at iteration 7: running again goes on from there." in str(said.value)
    assert load_checkpoint(tmp_path / "checkpoint.pt")["state"]["iteration"] == 7
    assert not list(tmp_path.glob(".snip-tmp-*"))


def assert_plain(message: str) -> None:
    """No name of a temporary file, no line of torch's sources, no record of the archive."""
    for internal in (files.TEMPORARY, "enforce", ".cc", "data/", "Errno"):
        assert internal not in message


FULL = """
import sys
from pathlib import Path
sys.path[:0] = [sys.argv[1]]
import torch
torch.set_num_threads(1)
from test_dying_files import CONFIG, assert_same_end, at, chancy_network, load
from snip.common.errors import FileError
from snip.training import load_checkpoint, train

mnist, folder = load("mnist").subset(500, 200), Path(sys.argv[2])
filler = folder / "filler"

def fill():
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass

try:
    train(chancy_network(), mnist, CONFIG, folder=folder, checkpoint_seconds=0,
          on_metrics=at(8, fill))
except FileError as error:
    print(error)
assert load_checkpoint(folder / "checkpoint.pt")["state"]["iteration"] == 7
assert not list(folder.glob(".snip-tmp-*"))
filler.unlink()
assert_same_end(mnist, folder)
print("went on")
"""


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    """On a file system of two megabytes, which only a namespace of its own lets us mount."""
    mount = f"mount -t tmpfs -o size=2m none {tmp_path}"
    alone = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    if not shutil.which("unshare") or subprocess.run([*alone, mount], check=False).returncode:
        pytest.skip("no namespaces here")
    places = [str(Path(__file__).parent), str(tmp_path)]
    done = subprocess.run(
        [*alone, f'{mount} && exec "$@"', "sh", sys.executable, "-c", FULL, *places],
        env=os.environ | SEES_THIS_TREE,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    message, *rest = done.stdout.splitlines()
    assert message.startswith(f"cannot write {tmp_path}/checkpoint.pt: the disk is full; free some")
    assert "at iteration 7: running again goes on from there." in message
    assert_plain(message)
    assert rest == ["went on"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EACCES])
def test_no_reason_quotes_a_temporary_file(tmp_path: Path, number: int) -> None:
    def writer(temporary: Path) -> None:
        raise OSError(number, os.strerror(number), str(temporary))

    with pytest.raises(FileError, match=r"cannot write .*a\.bin: .* Nothing was changed\.") as said:
        files.write_with(tmp_path / "a.bin", writer)
    assert_plain(str(said.value))
    full = number in (errno.ENOSPC, errno.EDQUOT)
    assert ("the disk is full" in str(said.value)) == full


class Hostile:
    """A pickle that would make a folder when it is read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("kind", ["call", "class"])
def test_a_file_that_asks_to_run_code_is_called_that(
    snip: Snip, mnist: Dataset, tmp_path: Path, kind: str
) -> None:
    trace = tmp_path / "code-was-run"
    path = tmp_path / "run" / "checkpoint.pt"
    path.parent.mkdir()
    torch.save({"model": Hostile(trace) if kind == "call" else nn.Linear(2, 2)}, path)
    with pytest.raises(FileError) as said:
        train(chancy_network(), mnist, CONFIG, folder=path.parent)
    code, _, inspected = snip("inspect", path)
    assert code == 2
    for message in (str(said.value), inspected):
        assert f"asks to run code ({'posix.mkdir' if kind == 'call' else 'torch.nn.'}" in message
        assert "which Snip never does" in message
        assert "damaged" not in message
        for advice in ("weights_only", "safe_globals", "trusted", "torch.load"):
            assert advice not in message
    assert not trace.exists()
