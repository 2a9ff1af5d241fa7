"""What the tests of the command line share: an empty folder, a finished run, a caller."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from snip.cli import main

SNIP = Path(sys.executable).with_name("snip")
SMALL = ["--iterations", "60", "--eval-every", "30", "--batch-size", "20", "--schedule", "short"]
RUN = ["run", "--model", "lenet-300-100", "--sparsity", "0.95", *SMALL]
LENET = ["--model", "lenet-300-100"]
HALF = ["--sparsity", "0.5"]
PRUNE = ["prune", *LENET, *HALF]
OWN_NETWORK = """
from torch import nn

def small(classes, channels, size):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, 8), nn.Linear(8, classes))

def narrow():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 3))

def nothing():
    return None

def bare():
    return nn.Sequential(nn.Flatten(), nn.LayerNorm(784), nn.AdaptiveAvgPool1d(10))
"""

Snip = Callable[..., tuple[int, str, str]]


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder of the test's own, with no data sets of the machine's user in sight."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    monkeypatch.delenv("SNIP_DATA", raising=False)


@pytest.fixture
def snip(capsys: pytest.CaptureFixture[str]) -> Snip:
    """Run a command in this process: (exit code, stdout, stderr)."""

    def call(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return call


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    torch.set_num_threads(1)
    assert main([*RUN, "--folder", str(folder)]) == 0
    return folder


def process(*arguments: str, **settings: object) -> subprocess.CompletedProcess[str]:
    """Run the installed command."""
    return subprocess.run(
        [SNIP, *arguments], capture_output=True, text=True, check=False, **settings
    )


def files() -> list[str]:
    return sorted(str(path) for path in Path().rglob("*"))
