"""Other processes: two that talk to each other, or a fresh interpreter."""

import os
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

import snip


def run_in_two_processes(work: Callable[[int, int, str], None], folder: Path) -> None:
    """work(rank, port, folder) in each of two new processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.multiprocessing.spawn(work, (port, str(folder)), nprocs=2)


def run_python(
    script: str, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter that sees this source tree."""
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=os.environ | {"PYTHONPATH": str(Path(snip.__file__).parents[1])} | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
