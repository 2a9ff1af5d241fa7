"""Other processes: some that talk to each other, or a fresh interpreter."""

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing import start_processes

import snip
from snip.training.interrupts import UNTOUCHED

SEES_THIS_TREE = {"PYTHONPATH": str(Path(snip.__file__).parents[1])}
PATIENCE = 300  # seconds until a process counts as hanging: the machine may be busy
PRELOADED = ["torch", "torch.distributed.fsdp", "snip.algorithm"]
LONG = ["--model", "lenet-300-100", "--sparsity", "0.9", "--eval-every", "20", "--threads", "1"]


def run_in_processes(work: Callable[[int, int, str], None], folder: Path, count: int = 2) -> None:
    """work(rank, count, folder) in each of some new processes, which have met each other.

    They are forked from one clean process that has imported torch, which is the slow part. Such
    processes also skip Python's shutdown, which a gloo thread can abort (see test_torchrun.py).
    """
    multiprocessing.set_forkserver_preload(PRELOADED)
    # They meet by a file: between the search for a free port and its use, another process may
    # take it.
    address = f"file://{folder / f'meeting-{uuid.uuid4()}'}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start_processes(
            _met, (work, count, address, str(folder)), nprocs=count, start_method="forkserver"
        )


def found_in_processes(
    work: Callable[[int, int, str], None], folder: Path, count: int = 2
) -> list[Any]:
    """The same, and what each process has saved as RANK.pt in the folder, in their order."""
    run_in_processes(work, folder, count)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(count)]


def _met(rank: int, work: Callable[..., None], count: int, address: str, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=address,
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=PATIENCE),
    )
    work(rank, count, folder)
    dist.destroy_process_group()


@contextmanager
def calling_process(prepare: Callable[[], None]) -> Iterator[Callable[..., Any]]:
    """A function that calls others in one new process, after `prepare()` there.

    What they return is returned, and what they raise is raised, with the traceback of there.
    """
    multiprocessing.set_forkserver_preload(PRELOADED)
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(1, context, prepare) as pool:
        yield lambda work, *args: pool.submit(work, *args).result(PATIENCE)


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


def free_port() -> int:
    """A port of this machine that nobody uses now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def hear_signals() -> None:
    """For `preexec_fn`: what runs in the background of a shell has inherited deafness to Ctrl-C."""
    for number in UNTOUCHED:
        signal.signal(number, signal.SIG_DFL)


def start_run(folder: Path, *flags: str) -> "subprocess.Popen[str]":
    """A `snip run` of some minutes in a process that hears all signals."""
    return subprocess.Popen(
        [sys.executable, "-m", "snip", "run", *LONG, *flags, "--folder", str(folder)],
        env=os.environ | SEES_THIS_TREE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hear_signals,
    )


def wait_for_metrics(folder: Path, running: "subprocess.Popen[str]") -> None:
    """Wait until the run has written its first line of metrics."""
    lines = folder / "metrics.jsonl"
    while running.poll() is None and not (lines.exists() and lines.read_text()):
        time.sleep(0.02)
    assert running.poll() is None, "the run ended before its first evaluation"
