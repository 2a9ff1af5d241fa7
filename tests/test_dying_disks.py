"""Disks that fill up and files that may not grow: said in plain words, and nothing is half-made."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from dying_parts import CONFIG, at
from processes import PATIENCE, SEES_THIS_TREE
from training_parts import chancy_network

from snip.common import files
from snip.common.errors import FileError
from snip.data import Dataset, load
from snip.training import load_checkpoint, train

resource = pytest.importorskip("resource")


@pytest.fixture(scope="module")
def mnist() -> Dataset:
    return load("mnist").subset(500, 200)


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
from dying_parts import CONFIG, assert_same_end, at
from training_parts import chancy_network
from snip.common.errors import FileError
from snip.data import load
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
