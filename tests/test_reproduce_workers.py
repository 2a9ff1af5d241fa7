"""Workers of `snip reproduce` that are lost, and runs that begin with others."""

import os
import signal
import time
from multiprocessing import get_context
from pathlib import Path

import pytest

from snip.experiments.sweep.local_workers import LocalWorkers, Worker
from snip.experiments.sweep.pool import Pool
from snip.experiments.sweep.work import DIVERGED, DONE, LOST, Place, Task
from snip.runs import RunConfig
from snip.runs.folder import FINISHED, state_of
from snip.training import TrainConfig

TINY = TrainConfig(iterations=15)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL here")
def test_an_idle_worker_that_is_killed_is_replaced(tmp_path):
    workers = LocalWorkers(Place(tmp_path))
    tasks = [Task("one", RunConfig("lenet-300-100", 0.9, train=TINY, seed=s)) for s in range(2)]
    first = workers.start(tasks[0])
    while (outcome := workers.outcome(first)) is None:
        workers.wait([first], 1.0)
    assert outcome.kind == DONE
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.join()
    second = workers.start(tasks[1])
    while (outcome := workers.outcome(second)) is None:
        workers.wait([second], 1.0)
    assert (outcome.kind, second.process is first.process) == (DONE, False)
    workers.stop([])


def test_a_worker_that_dies_before_it_reads_its_task_is_lost(tmp_path):
    """As if it was killed for want of memory while it imports torch."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=time.sleep, args=(0,))
    process.start()
    task = Task("one", RunConfig("lenet-300-100", 0.9, train=TINY))
    ours.send(task.config)
    process.join()
    theirs.close()  # with the configuration unread in it
    outcome = LocalWorkers(Place(tmp_path)).outcome(Worker(process, ours, task))
    assert outcome.kind == LOST
    assert "ended by itself (exit code 0)" in outcome.sentence
    assert "files were changed meanwhile" in outcome.sentence


def test_a_first_training_that_was_removed_is_done_again(tmp_path):
    config = RunConfig("lenet-300-100", 0.9, method="lwc", train=TINY)
    first = config.trained_first.folder_name  # which a plan found finished, and is gone
    task, place = Task("LWC", config, first), Place(tmp_path)
    done = []
    pool = Pool([task], 1, place, lambda task, outcome: done.append(task), LocalWorkers(place))
    pool.run(lambda working, waiting: None)
    assert [one.name for one in done] == [first, config.folder_name]
    assert state_of(tmp_path / config.folder_name) == FINISHED


def test_what_begins_with_a_training_that_diverges_diverges(tmp_path: Path) -> None:
    diverging = TrainConfig(iterations=4, lr=1e30, validation=0)
    config = RunConfig("lenet-300-100", 0.9, method="lwc", train=diverging)
    first, place = config.trained_first, Place(tmp_path)
    tasks = [Task("first", first), Task("LWC", config, first.folder_name)]
    found = []
    pool = Pool(tasks, 1, place, lambda _, outcome: found.append(outcome), LocalWorkers(place))
    pool.run(lambda working, waiting: None)
    assert [outcome.kind for outcome in found] == [DIVERGED, DIVERGED]
    assert found[1].sentence.startswith("its first training came to nothing: ")
