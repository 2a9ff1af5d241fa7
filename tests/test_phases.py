"""Trainings one after another: what a phase finds in its folder, and what it notes of its rate."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from training_parts import network, weights_of

import snip
from snip.data import Dataset, load
from snip.methods.lc import LR_FACTOR, STEPS, LearningCompression
from snip.selection.select import select
from snip.training import TrainConfig, load_checkpoint
from snip.training.parts import data_for
from snip.training.phases import Phases
from snip.training.session import Options

CONFIG = TrainConfig(lr=0.1, iterations=3, lr_drops=(), batch_size=50, eval_every=100)


@pytest.fixture(scope="module")
def mnist() -> Dataset:
    return load("mnist").subset(500, 100)


def drawn(seed: int, model: torch.nn.Module) -> snip.Masks:
    generator = torch.Generator().manual_seed(seed)
    scores = {n: torch.rand(w.shape, generator=generator) for n, w in weights_of(model).items()}
    return select(scores, sparsity=0.5)


def phases_of(mnist: Dataset, folder: Path, **options: Any) -> Phases:
    options = {"progress": False, "checkpoint_seconds": 0, **options}
    return Phases(network(), data_for(mnist, CONFIG), CONFIG, Options(folder, **options))


@pytest.mark.parametrize("engine", ["dense", "sparse"])
def test_masks_of_a_phase_without_a_checkpoint_are_made_again(
    mnist: Dataset, tmp_path: Path, engine: str
) -> None:
    """Of a process that was killed right after it had written them, with other threads perhaps."""
    phases = phases_of(mnist, tmp_path, engine=engine)
    left, own = drawn(1, phases.model), drawn(2, phases.model)
    (tmp_path / "round-1").mkdir()
    left.save(tmp_path / "round-1" / "masks.safetensors")
    choice = {"asked": engine, "engine": "dense", "ways": {}, "step_seconds": {}}
    (tmp_path / "round-1" / "engine.json").write_text(json.dumps(choice))
    phases.train("round-1", CONFIG, start=lambda: own)
    assert snip.Masks.load(tmp_path / "round-1" / "masks.safetensors") == own
    assert (
        load_checkpoint(tmp_path / "round-1" / "checkpoint.pt")["identity"]["masks"] == own.digest()
    )
    found = tmp_path / "round-1" / "engine.json"
    assert (
        json.loads(found.read_text())["engine"] == "sparse"
        if engine == "sparse"
        else not found.exists()
    )


def test_with_a_checkpoint_the_masks_stay_and_are_not_made_again(
    mnist: Dataset, tmp_path: Path
) -> None:
    phases = phases_of(mnist, tmp_path)
    own = drawn(2, phases.model)
    phases.train("round-1", CONFIG, start=lambda: own)
    again = phases_of(mnist, tmp_path)
    again.train("round-1", CONFIG, start=lambda: pytest.fail("the masks were made again"))
    assert snip.held_masks(again.model) == own


def test_metrics_have_the_rate_that_a_step_was_taken_with(mnist: Dataset, tmp_path: Path) -> None:
    """Hooks multiply the schedule's rate: by 0.95 in each L step of LC."""
    config = TrainConfig(
        lr=0.02, weight_decay=0, iterations=STEPS + 1, lr_drops=(), batch_size=50, eval_every=1
    )
    told: list[float] = []

    class Noting:
        def phase(self, name: str) -> "Noting":
            return self

        def begin(self, history: Any) -> None: ...

        def end(self) -> None: ...

        def record(self, metrics: Any) -> None:
            told.append(metrics.lr)

    phases = phases_of(mnist, tmp_path, loggers=(Noting(),))
    hooks = LearningCompression(weights_of(phases.model), 300, config)
    result = phases.train("learning-compression", config, hooks=hooks)
    noted = [line.lr for line in result.history]
    assert noted == pytest.approx([0.02 * hooks.rate(step) for step in range(STEPS + 1)])
    assert noted[2] == pytest.approx(0.02 * LR_FACTOR)
    assert told == noted
