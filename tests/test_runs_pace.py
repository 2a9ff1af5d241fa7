"""How long runs take: told by finished runs, or by a few steps that were timed."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from snip.common.files import cache_folder
from snip.engine.convert.timings import Timings
from snip.experiments.granularity import SMALL_VGG
from snip.runs import RunConfig, RunResult
from snip.runs.pace import GAINS, PHASES, POWER, Pace
from snip.runs.step_time import FEW, remembered_step_seconds, step_seconds, whole_batch
from snip.training import TrainConfig, train_step

TRAIN = TrainConfig(iterations=200, batch_size=20, lr_drops=())
CONFIG = RunConfig("lenet-300-100", 0.9, train=TRAIN)
NAME = (CONFIG.model, CONFIG.dataset)


@pytest.fixture
def took(finished_run: Path) -> Callable[..., RunResult]:
    """A finished run of 200 steps with these changes, which took so long, and `rest` beside."""
    result = RunResult.read(finished_run)

    def made(seconds: float, rest: float = 0.0, **changes: object) -> RunResult:
        config = replace(CONFIG, **changes)
        pace = config.last_training.iterations / seconds if seconds else 1e9
        return replace(result, config=config, seconds=seconds + rest, steps_per_second=pace)

    return made


def test_the_fastest_of_equal_runs_tells(took: Callable[..., RunResult]) -> None:
    """Others were at work on the machine while the slow ones ran."""
    pace = Pace()
    assert pace.seconds(CONFIG) is None
    pace.learn([took(670.0), took(50.0), took(637.0, seed=1)])
    assert pace.seconds(CONFIG) == pytest.approx(50)
    # A sparser network is no slower, whatever its own run says; one as long again takes as long.
    pace.learn([took(380.0, sparsity=0.98)])
    assert pace.seconds(replace(CONFIG, sparsity=0.98)) == pytest.approx(50)
    longer = replace(CONFIG, train=replace(TRAIN, iterations=400))
    assert pace.seconds(longer) == pytest.approx(100)
    halves = replace(CONFIG, train=replace(TRAIN, batch_size=10))
    assert pace.seconds(halves) == pytest.approx(25)


def test_between_two_sparsities_by_the_power_that_leads_from_one_to_the_other(
    took: Callable[..., RunResult],
) -> None:
    pace = Pace()
    pace.learn([took(90.0, sparsity=0), took(30.0), took(10.0, sparsity=0.99)])
    half = 1 - 0.1**0.5  # as far from the dense network as from 90%, on a scale of logarithms
    told = [pace.seconds(replace(CONFIG, sparsity=s)) for s in (0, half, 0.9, 0.99, 0.9999)]
    beyond = 10 * 0.01**POWER
    assert told == pytest.approx([90, (90 * 30) ** 0.5, 30, 10, beyond])
    assert pace.seconds(replace(CONFIG, engine="dense")) == pytest.approx(90)
    tiny = pace.seconds(replace(CONFIG, sparsity=1e-300))  # which 1 - 1e-300 does not tell from 0
    assert tiny == pytest.approx(90)


def test_a_much_shorter_run_tells_nothing(took: Callable[..., RunResult]) -> None:
    """Its first steps, which are slow, are most of it."""
    trial = took(3.0, train=replace(TRAIN, iterations=19))
    pace = Pace(measured={NAME: 0.01 / 20})
    untold = pace.seconds(CONFIG)
    pace.learn([trial])
    assert pace.seconds(CONFIG) == untold
    assert pace.seconds(trial.config) == pytest.approx(3)
    pace.learn([took(3.0, train=replace(TRAIN, iterations=20))])
    assert pace.seconds(CONFIG) == pytest.approx(30)
    pace = Pace()
    pace.learn([trial])
    pace.measure(CONFIG)  # so that a dense step tells what the trial does not
    assert pace.measured.keys() == {NAME}


def test_evaluations_are_told_apart(took: Callable[..., RunResult]) -> None:
    """A trial of a tenth of the steps has ten evaluations, where the whole run has two."""
    trial = replace(TRAIN, iterations=20, eval_every=2)
    pace = Pace()
    pace.learn([took(1.0, rest=5.0, train=trial)])
    assert pace.seconds(replace(CONFIG, train=trial)) == pytest.approx(6)
    assert pace.seconds(replace(CONFIG, train=replace(TRAIN, eval_every=100))) == pytest.approx(11)
    # 0 is once per epoch, which 54,000 images have; the end is evaluated too.
    epochs = replace(TRAIN, iterations=201, batch_size=540)
    pace.learn([took(100.0, rest=30.0, sparsity=0.5, train=epochs)])
    longer = replace(CONFIG, sparsity=0.5, train=replace(epochs, iterations=402))
    assert pace.seconds(longer) == pytest.approx(200 + 50)


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_a_run_that_took_no_time_tells_nothing(
    took: Callable[..., RunResult], seconds: float
) -> None:
    pace = Pace()
    pace.learn([took(seconds), took(1.0, sparsity=0)])
    assert pace.seconds(replace(CONFIG, sparsity=0.5)) == pytest.approx(
        (0.5 / (1 - GAINS)) ** POWER
    )


# Milliseconds of a step on one core, dense and pruned; of the last two the ratio in the README.
MEASURED = {
    "lenet-5-caffe": (22.4, {0.2: 23.2, 0.5: 20.9, 0.7: 16.3, 0.9: 10.1, 0.98: 5.1, 0.99: 3.5}),
    "lstm-s": (28.0, {0.95: 7.8}),
    "lstm-b": (109.0, {0.95: 19.7}),
    "gru-b": (86.5, {0.95: 16.6}),
    "vgg-like": (2.2, {0.97: 1.0}),
    "wrn-16-8": (1.95, {0.95: 1.0}),
}


def test_a_dense_step_tells_a_pruned_one_within_a_factor_of_two() -> None:
    for model, (dense, pruned) in MEASURED.items():
        for sparsity, milliseconds in pruned.items():
            config = RunConfig(model, sparsity)  # by the paper's schedule
            per_image = dense / config.training.batch_size
            told = Pace(measured={(model, config.dataset): per_image}).seconds(config)
            assert told is not None
            measured = 1.1 * milliseconds * config.training.iterations  # a tenth for evaluations
            assert 0.5 < told / measured < 2, (model, sparsity)


def test_what_is_not_known_is_told_by_a_dense_step(took: Callable[..., RunResult]) -> None:
    pace = Pace(measured={NAME: 0.01 / 20})  # 10 ms for a step of 20 images
    dense = replace(CONFIG, sparsity=0)
    # Two seconds of steps, and one evaluation: 6,000 images held out and 10,000 of the test part.
    whole = 2 + 16_000 / 3 * 0.01 / 20
    assert pace.seconds(dense) == pytest.approx(whole)
    assert pace.seconds(CONFIG) == pytest.approx(whole * (0.1 / (1 - GAINS)) ** POWER)
    rival = replace(CONFIG, method="lwc")
    assert pace.seconds(rival) == pytest.approx(whole * PHASES[rival.method])
    phases = {"first training": {"iterations": 60, "seconds": 100.0},
              "round-1": {"iterations": 30, "seconds": 54.0}}  # fmt: skip
    pace.learn([replace(took(6.0, method="lwc"), cost=phases)])
    assert pace.seconds(rival) == pytest.approx(60)  # without the first, which others share
    # Runs of pruned networks tell nothing of the dense one.
    pace = Pace()
    pace.learn([took(6.0)])
    assert pace.seconds(dense) is None


def test_only_what_no_run_tells_is_timed(took: Callable[..., RunResult]) -> None:
    pace = Pace()
    pace.learn([took(6.0)])
    pace.measure(CONFIG)
    assert pace.measured == {}
    pace.measure(replace(CONFIG, sparsity=0.1))  # between the dense network and 90%
    assert pace.measured.keys() == {NAME}
    sparse, dense = (pace.seconds(replace(CONFIG, sparsity=s)) for s in (0.1, 0))
    assert dense is not None
    assert sparse == pytest.approx(dense * (6 / dense) ** (math.log(0.9) / math.log(0.1)))


def test_the_pace_of_a_folder(finished_run: Path, tmp_path: Path) -> None:
    for name in ("whole", "damaged"):
        shutil.copytree(finished_run, tmp_path / name)
    (tmp_path / "damaged" / "result.json").write_text("{")
    config = RunResult.read(finished_run).config
    assert [one.config for one in Pace.of_folder(tmp_path).known] == [config]
    assert Pace.of_folder(tmp_path / "nowhere").known == []


def test_a_large_network_is_timed_on_few_images() -> None:
    """By hand: what a step takes however many images there are, and what each one adds."""

    def timed(fixed: float, per_image: float) -> tuple[float, list[int]]:
        counts: list[int] = []

        def best(work: Callable[[], object], _rounds: int) -> float:
            work()
            return fixed + per_image * counts[-1]

        return whole_batch(counts.append, 128, best), counts

    assert timed(1.0, 10.0) == (pytest.approx(1 + 1280), [FEW, 8])
    assert timed(0.08, 0.02) == (pytest.approx(0.08 + 2.56), [FEW, 8])  # as VGG-D on one core
    assert timed(0.0, 0.01) == (pytest.approx(1.28), [FEW, 8, 32])
    assert timed(0.0, 1e-4) == (pytest.approx(0.0128), [FEW, 8, 32, 128])
    assert timed(1.0, -0.01) == (pytest.approx(1 - 0.08), [FEW, 8])  # noise: never less than that


def test_no_weight_is_drawn_to_time_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("drawing takes a minute for the largest networks")

    monkeypatch.setattr(torch.nn.init, "trunc_normal_", refuse)
    state = torch.get_rng_state()
    small = replace(TRAIN, batch_size=2)
    assert step_seconds(RunConfig("alexnet-s", 0, train=small)) > 0
    assert torch.equal(torch.get_rng_state(), state)


def test_convolutions_are_timed_in_channels_last_as_they_are_trained(monkeypatch) -> None:
    seen = set()

    def step(model, optimizer, *batch):
        seen.add(model.conv2.weight.is_contiguous(memory_format=torch.channels_last))
        return train_step(model, optimizer, *batch)

    monkeypatch.setattr("snip.runs.step_time.train_step", step)
    step_seconds(RunConfig("lenet-5-caffe", 0, train=TrainConfig(batch_size=2)))
    assert seen == {True}


def test_the_time_of_a_named_network_is_remembered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SNIP_CACHE", str(tmp_path))
    own = RunConfig(SMALL_VGG, 0, "cifar-10", train=replace(TRAIN, batch_size=2))
    assert remembered_step_seconds(own) > 0
    assert list(tmp_path.iterdir()) == []  # the function may be another one tomorrow
    found = remembered_step_seconds(CONFIG)
    path = Timings().path
    assert path.parent == cache_folder() == tmp_path
    (key,) = json.loads(path.read_text())
    assert key == "training step by two counts: lenet-300-100, mnist, 20 images, sgd, 1 threads"
    path.write_text(json.dumps({key: found + 1}))
    assert remembered_step_seconds(CONFIG) == found + 1
    assert remembered_step_seconds(replace(CONFIG, train=TrainConfig())) != found + 1
