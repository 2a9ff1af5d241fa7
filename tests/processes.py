"""Two real processes that talk to each other."""

import socket
import warnings
from collections.abc import Callable
from pathlib import Path

import torch


def run_in_two_processes(work: Callable[[int, int, str], None], folder: Path) -> None:
    """work(rank, port, folder) in each of two new processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.multiprocessing.spawn(work, (port, str(folder)), nprocs=2)
