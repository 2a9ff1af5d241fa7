"""Other processes: two that talk to each other, or a fresh interpreter."""

import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

import snip
from snip.training.interrupts import UNTOUCHED

SEES_THIS_TREE = {"PYTHONPATH": str(Path(snip.__file__).parents[1])}
PATIENCE = 300  # seconds until a process counts as hanging: the machine may be busy
LONG = ["--model", "lenet-300-100", "--sparsity", "0.9", "--eval-every", "20", "--threads", "1"]


def run_in_two_processes(work: Callable[[int, str, str], None], folder: Path) -> None:
    """work(rank, address, folder) in each of two new processes, which meet at the address."""
    # A file: between the search for a free port and its use, another process may take it.
    address = f"file://{folder / 'meeting'}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.multiprocessing.spawn(work, (address, str(folder)), nprocs=2)


def run_python(
    script: str, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter that sees this source tree."""
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=os.environ | SEES_THIS_TREE | environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def start_run(folder: Path, *flags: str) -> "subprocess.Popen[str]":
    """A `snip run` of some minutes in a process that hears all signals, whoever started us."""

    def hear() -> None:
        for number in UNTOUCHED:
            signal.signal(number, signal.SIG_DFL)

    return subprocess.Popen(
        [sys.executable, "-m", "snip", "run", *LONG, *flags, "--folder", str(folder)],
        env=os.environ | SEES_THIS_TREE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hear,
    )


def wait_for_metrics(folder: Path, running: "subprocess.Popen[str]") -> None:
    """Wait until the run has written its first line of metrics."""
    lines = folder / "metrics.jsonl"
    while running.poll() is None and not (lines.exists() and lines.read_text()):
        time.sleep(0.02)
    assert running.poll() is None, "the run ended before its first evaluation"
