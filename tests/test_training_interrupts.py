"""Ctrl-C, weights that overflow, and folders left at a bad moment: no work is lost or spoilt."""

import dataclasses
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from training_parts import (
    CONFIG,
    StoppedError,
    chancy_network,
    pruned_network,
    repeatable,
    same_weights,
)

import snip
from snip.common.errors import InputError
from snip.data import Dataset, load
from snip.training import DivergenceError, Metrics, load_checkpoint, train, train_step


@pytest.fixture(scope="module")
def mnist() -> Dataset:
    return load("mnist").subset(2000, 500)


@pytest.fixture(autouse=True)
def _heard() -> Iterator[None]:
    """Tests in the background of a shell have inherited deafness to Ctrl-C."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


def interrupt(metrics: Metrics) -> None:
    if metrics.iteration == 20:
        signal.raise_signal(signal.SIGINT)


def test_an_interrupt_saves_the_work_first(mnist: Dataset, tmp_path: Path) -> None:
    whole_model, fresh = pruned_network(mnist), pruned_network(mnist)
    whole = train(whole_model, mnist, CONFIG)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(pruned_network(mnist), mnist, CONFIG, folder=tmp_path, on_metrics=interrupt)
    assert signal.getsignal(signal.SIGINT) is handler
    assert load_checkpoint(tmp_path / "checkpoint.pt")["state"]["iteration"] == 20
    resumed = train(fresh, mnist, CONFIG, folder=tmp_path)
    assert repeatable(resumed.history) == repeatable(whole.history)
    assert same_weights(fresh, whole_model)


def test_a_second_interrupt_ends_at_once(mnist: Dataset, tmp_path: Path) -> None:
    def twice(metrics: Metrics) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(chancy_network(), mnist, CONFIG, folder=tmp_path, on_metrics=twice)
    assert not (tmp_path / "checkpoint.pt").exists()


def test_other_threads_and_handlers_of_the_users_own_are_left_alone(mnist: Dataset) -> None:
    short = dataclasses.replace(CONFIG, iterations=2, lr_drops=())
    done: list[int] = []

    def work() -> None:
        done.append(train(chancy_network(), mnist, short).final.iteration)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [2]
    seen: list[int] = []
    previous = signal.signal(signal.SIGINT, lambda number, _: seen.append(number))
    try:
        train(chancy_network(), mnist, CONFIG, on_metrics=interrupt)
    finally:
        signal.signal(signal.SIGINT, previous)
    assert seen == [signal.SIGINT]


def test_the_last_good_checkpoint_is_good(mnist: Dataset, tmp_path: Path) -> None:
    """A step with a finite loss may still leave weights that are not."""
    model, calls = chancy_network(), 0

    def step(*args: Any) -> tuple[float, int]:
        nonlocal calls
        calls += 1
        outcome = train_step(*args)
        if calls == 31:
            with torch.no_grad():
                model[1].weight[0, 0] = float("nan")
        return outcome

    with pytest.raises(DivergenceError, match=r"1\.weight has .* not finite .*at iteration 30"):
        train(model, mnist, CONFIG, folder=tmp_path, checkpoint_seconds=0, step=step)
    saved = load_checkpoint(tmp_path / "checkpoint.pt")["model"]
    assert all(torch.isfinite(value).all() for value in saved.values())
    assert train(chancy_network(), mnist, CONFIG, folder=tmp_path).final.iteration == 60


class StoppingMasks(snip.Masks):
    """Stands for a process that is killed while or after it saves its masks."""

    def save(self, path: Any) -> None:
        super().save(path)
        raise StoppedError


def test_starting_over_with_other_masks_can_be_killed(mnist: Dataset, tmp_path: Path) -> None:
    train(pruned_network(mnist), mnist, CONFIG, folder=tmp_path)
    other = chancy_network()
    masks = snip.prune(other, next(iter(mnist.evaluation_batches(100))), sparsity=0.5)
    with pytest.raises(StoppedError):
        train(
            chancy_network(), mnist, CONFIG,
            folder=tmp_path, resume=False, masks=StoppingMasks(dict(masks), masks.provenance),
        )  # fmt: skip
    assert train(chancy_network(), mnist, CONFIG, folder=tmp_path, masks=masks).final.iteration


def test_starting_over_without_masks_leaves_none(mnist: Dataset, tmp_path: Path) -> None:
    train(pruned_network(mnist), mnist, CONFIG, folder=tmp_path)
    train(chancy_network(), mnist, CONFIG, folder=tmp_path, resume=False)
    assert not (tmp_path / "masks.safetensors").exists()


def test_a_refused_start_keeps_the_checkpoint(mnist: Dataset, tmp_path: Path) -> None:
    train(chancy_network(), mnist, CONFIG, folder=tmp_path)
    frozen = chancy_network().requires_grad_(False)
    for model, engine in ((frozen, "dense"), (chancy_network(), "sparce")):
        with pytest.raises(InputError):
            train(model, mnist, CONFIG, folder=tmp_path, resume=False, engine=engine)
    assert load_checkpoint(tmp_path / "checkpoint.pt")["state"]["iteration"] == 60
