"""A short training to which something happens, and how it must end when it goes on."""

from collections.abc import Callable
from pathlib import Path

from training_parts import chancy_network, repeatable

from snip.data import Dataset
from snip.training import Metrics, TrainConfig, train

CONFIG = TrainConfig(iterations=12, lr_drops=(), batch_size=50, eval_every=4)


def at(iteration: int, action: Callable[[], object]) -> Callable[[Metrics], None]:
    """Do something after one evaluation; the files are then closed, and the next write is near."""

    def on_metrics(metrics: Metrics) -> None:
        if metrics.iteration == iteration:
            action()

    return on_metrics


def assert_same_end(mnist: Dataset, folder: Path) -> None:
    """A training that goes on in the folder ends as one that nothing happened to."""
    resumed = train(chancy_network(), mnist, CONFIG, folder=folder)
    whole = train(chancy_network(), mnist, CONFIG)
    assert repeatable(resumed.history) == repeatable(whole.history)
