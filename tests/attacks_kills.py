"""Random kills: a run that dies again and again ends with the bits of one that was left alone."""

from __future__ import annotations

import multiprocessing
import random
import signal
import tempfile
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
from training_parts import repeatable

from snip.masks import Masks
from snip.runs import RunConfig, run
from snip.training import TrainConfig
from snip.training.metrics import read_metrics

WEIGHTS = ("model.safetensors", "selected.safetensors")
PATIENCE = 300  # seconds until a process counts as hanging


def attack(seed: int) -> None:
    """Kill a short run at random moments, resume it, and compare it with an undisturbed one."""
    chance = random.Random(seed)
    config, every = random_config(chance), chance.choice([0.0, 0.0, 0.05, 20.0])
    with tempfile.TemporaryDirectory(prefix="snip-kills-") as place:
        whole, killed = Path(place) / "whole", Path(place) / "killed"
        began = time.monotonic()
        assert exit_code(start(config, whole, every)) == 0, "the undisturbed run failed"
        seconds = time.monotonic() - began
        for _ in range(chance.randint(1, 4)):
            process = start(config, killed, every)
            process.join(chance.uniform(0, seconds))
            end(process, chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
        assert exit_code(start(config, killed, every)) == 0, "the killed run did not resume"
        assert_same_run(whole, killed, pruned=config.sparsity > 0)


def random_config(chance: random.Random) -> RunConfig:
    """A run of a second or two. Not with the engine "auto", which decides by timing."""
    training = TrainConfig(
        iterations=40,
        batch_size=chance.choice([20, 33]),
        eval_every=chance.choice([7, 15, 40]),
        lr_drops=(20,),
        optimizer=chance.choice(["sgd", "adam", "adamw"]),
        lr=0.001,
        validation=chance.choice([0.0, 0.1]),
    )
    return RunConfig(
        chance.choice(["lenet-300-100", "gru-s"]),
        sparsity=chance.choice([0.0, 0.5, 0.95]),
        engine=chance.choice(["dense", "sparse"]),
        protocol=chance.choice(["train-scored", "redraw"]),
        seed=chance.randrange(100),
        train=training,
    )


def work(config: RunConfig, folder: Path, every: float) -> None:
    """What each process does."""
    torch.set_num_threads(1)
    run(config, folder=folder, progress=False, checkpoint_seconds=every)


def start(config: RunConfig, folder: Path, every: float) -> BaseProcess:
    # The server imports what takes long once (any optimiser wants dynamo): processes start fast.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["snip.runs", "torch._dynamo", "training_parts"])
    process = context.Process(target=work, args=(config, folder, every))
    process.start()
    return process


def end(process: BaseProcess, number: signal.Signals) -> None:
    """Send a signal, which a process that is just done no longer needs, and wait for the end."""
    process.kill() if number == signal.SIGKILL else process.terminate()
    allowed = (0, -number, 128 + number)  # 128 + SIGTERM: it saved its work first
    assert exit_code(process) in allowed, f"{number.name} led to exit code {process.exitcode}"


def exit_code(process: BaseProcess) -> int | None:
    process.join(PATIENCE)
    if process.exitcode is None:
        process.kill()
    return process.exitcode


def assert_same_run(whole: Path, killed: Path, *, pruned: bool) -> None:
    lines, true_lines = (repeatable(read_metrics(p / "metrics.jsonl")) for p in (killed, whole))
    assert lines == true_lines, "metrics.jsonl differs"
    for name in WEIGHTS:
        assert (killed / name).read_bytes() == (whole / name).read_bytes(), f"{name} differs"
    if pruned:
        assert Masks.load(killed / "masks.safetensors") == Masks.load(whole / "masks.safetensors")
    left = list(killed.glob(".snip-tmp-*"))
    assert not left, f"left behind: {left}"
