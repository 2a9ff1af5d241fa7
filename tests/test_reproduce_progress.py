"""How far a sweep is, and how long it takes with several jobs."""

import os
from pathlib import Path

import pytest

from snip.common.text import duration
from snip.experiments import EXPERIMENTS
from snip.experiments.sweep import progress as of_sweep
from snip.experiments.sweep.estimate import show_estimate
from snip.experiments.sweep.order import together
from snip.experiments.sweep.progress import Progress
from snip.experiments.sweep.reproduce import Reproduction
from snip.experiments.sweep.request import Request
from snip.experiments.sweep.work import Place, Task
from snip.runs import RunConfig
from snip.runs.listing import RUNNING, Listed
from snip.runs.pace import Pace

HOUR = Pace(measured={("lenet-300-100", "mnist"): 3600 / 1e7})


@pytest.mark.parametrize(
    ("seconds", "jobs", "whole"),
    [([], 2, 0), ([60], 8, 60), ([60, 60], 2, 60), ([60, 10, 10], 2, 60), ([30, 30, 30], 2, 45)],
)
def test_no_more_runs_at_a_time_than_there_are_and_no_less_than_the_longest(
    seconds: list[float], jobs: int, whole: float
) -> None:
    assert together(seconds, jobs) == whole


def test_a_first_training_that_comes_along_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(of_sweep, "LINE_EVERY", 0.0)
    tasks = [Task("run", RunConfig("lenet-300-100", 0.9, seed=seed)) for seed in range(3)]
    shown = Progress(2, HOUR, Request(Place(tmp_path), tmp_path, jobs=8))
    shown.watch([tasks[0]], [])
    shown.watch(tasks[:1], tasks[1:2])  # that one was gone, and is done again
    shown.watch([], tasks[1:2])
    shown.watch([], [])
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" runs")[0] for line in lines] == [
        "1 of 2",
        "1 of 3",
        "2 of 3",
        "3 of 3",
    ]


def test_a_run_that_is_nearly_done_does_not_make_the_others_short(
    tmp_path: Path,
) -> None:
    """Nothing is known but of the run at work: those that wait take as long as the whole of it."""
    config = RunConfig("lenet-300-100", 0.9)
    begun = Listed(tmp_path, config, RUNNING, "", 900, 1000, 90.0)
    shown = Progress(3, Pace(), Request(Place(tmp_path), tmp_path))
    waiting = [(Task("run", RunConfig("lenet-300-100", 0.9, seed=s)), None) for s in (1, 2)]
    assert shown._left([(Task("run", config), begun), *waiting]) == [10, 100, 100]
    assert shown._left(waiting) is None


def test_runs_that_another_command_is_at_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(of_sweep, "LINE_EVERY", 0.0)
    tasks = [Task("batch 1", RunConfig("lenet-300-100", 0.9, seed=seed)) for seed in range(3)]
    tasks[1].is_elsewhere = True
    shown = Progress(3, HOUR, Request(Place(tmp_path), tmp_path))
    shown.watch([], tasks)
    tasks[2].is_elsewhere = True
    shown.watch([], tasks)
    one, more = capsys.readouterr().err.splitlines()
    assert "; another command is at batch 1 seed 1; about" in one
    assert "; another command is at batch 1 seed 1 and 1 more; about" in more


def test_jobs_beyond_the_cores_do_not_shorten_the_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    place, only = Place(tmp_path / "runs"), ("snip-0.95",)
    request = Request(place, tmp_path / "results", seeds=4, jobs=100, scale=0.0002, only=only)
    work = Reproduction(EXPERIMENTS["table1"], request)
    work.pace.measured[("lenet-300-100", "mnist")] = 1.0
    seconds = sum(show_estimate(work).values())
    out = capsys.readouterr().out
    half = f"{duration(seconds / 2)} with --jobs 100, as this machine has 2 cores,"
    assert half in out
