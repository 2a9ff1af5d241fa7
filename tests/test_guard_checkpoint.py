"""A crafted checkpoint is refused when it is restored, not steps later, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hostile_checkpoints import IDENTITY, make_checkpoint, read_checkpoint, training_parts
from hostile_values import digest
from torch import nn

from snip.common.errors import FileError
from snip.training.checkpoint import restore, save_checkpoint
from snip.training.state import State, snapshot

Change = Callable[[dict[str, Any]], object]


def refused(tmp_path: Path, change: Change, match: str, kind: str = "sgd") -> None:
    path = make_checkpoint(tmp_path, kind)
    read_checkpoint(path, kind)
    content = torch.load(path, weights_only=True)
    change(content)
    torch.save(content, path)
    with pytest.raises(FileError, match=match):
        read_checkpoint(path, kind)


def group(content: dict[str, Any]) -> dict[str, Any]:
    return content["optimizer"]["param_groups"][0]


def kept(content: dict[str, Any]) -> dict[str, Any]:
    return content["optimizer"]["state"][0]


@pytest.mark.parametrize(
    "change",
    [
        lambda content: group(content).update(momentum=0.5),
        lambda content: group(content).update(maximize=True),
        lambda content: group(content).pop("weight_decay"),
        lambda content: group(content)["params"].reverse(),
        lambda content: group(content).update(lr="0.1"),
        lambda content: group(content).update(lr=torch.tensor(0.1)),
        lambda content: group(content).pop("lr"),
        lambda content: content["optimizer"]["param_groups"].clear(),
    ],
)
def test_options_of_another_optimiser(tmp_path: Path, change: Change) -> None:
    refused(tmp_path, change, "optimiser|damaged")


def test_options_that_are_equal_are_taken_from_the_run(tmp_path: Path) -> None:
    """None stands for a default, so that it may be missing in a file of another version."""
    path = make_checkpoint(tmp_path)
    content = torch.load(path, weights_only=True)
    group(content).pop("foreach")
    group(content)["lr"] = 0.7
    torch.save(content, path)
    options = read_checkpoint(path)[1]["param_groups"][0]
    assert options["foreach"] is None
    assert options["lr"] == 0.1


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content["optimizer"]["state"].clear(),
        lambda content: kept(content).clear(),
        lambda content: kept(content).update(momentum_buffer=None),
        lambda content: kept(content).update(other=torch.zeros(2)),
        lambda content: content["optimizer"]["state"].update({999: {}}),
    ],
)
def test_a_state_with_something_missing_or_more(tmp_path: Path, change: Change) -> None:
    refused(tmp_path, change, "damaged")


@pytest.mark.parametrize(
    "step", ["x", -5.0, 1.0, [1], None, *map(torch.tensor, ([1.0] * 3, -1.0, 0.0, 1.5, 5.0, 1))]
)
def test_a_number_of_steps_that_cannot_be(tmp_path: Path, step: Any) -> None:
    refused(tmp_path, lambda content: kept(content).update(step=step), "damaged", "adam")


@pytest.mark.parametrize("name", ["step", "exp_avg", "exp_avg_sq"])
def test_adam_needs_all_that_it_keeps(tmp_path: Path, name: str) -> None:
    refused(tmp_path, lambda content: kept(content).pop(name), "the optimiser keeps", "adam")


def test_a_step_of_the_users_may_do_without_the_optimiser(tmp_path: Path) -> None:
    model, optimizer, _ = training_parts("sgd")
    optimizer.state.clear()
    state = State(4, 1.0, 1.0).to_dict()
    identity = {**IDENTITY, "iterations": 9}
    path, parts = tmp_path / "it.pt", {"model": model, "optimizer": optimizer, "identity": identity}
    save_checkpoint(path, state=state, **parts)
    assert restore(path, **parts, validates=False, stepped=False).iteration == 4
    with pytest.raises(FileError, match="there is nothing of it"):
        restore(path, **parts, validates=False, stepped=True)


def of_lines(**fields: Any) -> Change:
    return lambda content: [line.update(fields) for line in content["state"]["history"]]


def of_state(**fields: Any) -> Change:
    return lambda content: content["state"].update(fields)


def of_selected(change: Callable[[torch.Tensor], Any]) -> Change:
    def alter(content: dict[str, Any]) -> None:
        weights = content["state"]["selected"]
        content["state"]["selected"] = {name: change(value) for name, value in weights.items()}

    return alter


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (of_lines(valid_error=None, valid_loss=None), "has a validation part"),
        (of_lines(iteration=3), "last step was not evaluated"),
        (of_lines(iteration=5), "not in the order"),
        (of_lines(iteration=0), "not in the order"),
        (lambda c: c["state"]["history"].append(c["state"]["history"][0]), "not in the order"),
        (of_state(history=[]), "last step was not evaluated"),
        (of_state(iteration=5), "5 of 4 steps"),
        (of_state(iteration=-1), "-1 of 4 steps"),
        (of_state(seconds=-1.0), "-1.0 seconds"),
        (of_state(step_seconds=-1.0), "4 of 4 steps"),
        (of_state(cpu_seconds=-1.0), "4 of 4 steps"),
        (of_state(selected=None), "do not go with its evaluations"),
        (of_selected(torch.Tensor.double), "another network"),
        (of_selected(lambda value: value.to(torch.complex64)), "another network"),
        (of_selected(lambda value: value[None]), "another network"),
        (lambda c: c["state"]["running"].update(images=-(10**9)), "negative"),
        (lambda c: c["state"]["running"].update(wrong=-1), "negative"),
        (lambda c: c["state"]["running"].update(seconds=-1.0), "negative"),
        (lambda c: c.update(threads=-5), "-5 threads"),
        (lambda c: c["model"].update(foo="bar"), "another network .*foo"),
    ],
)
def test_a_state_that_no_training_has(tmp_path: Path, change: Change, match: str) -> None:
    refused(tmp_path, change, match)


def test_a_network_of_another_type(tmp_path: Path) -> None:
    def double(content: dict[str, Any]) -> None:
        content["model"] = {name: value.double() for name, value in content["model"].items()}

    refused(tmp_path, double, "another network")


class Choosy(nn.Module):
    """A module of the user's that may refuse its own state, after all checks of ours."""

    def __init__(self, version: int = 1) -> None:
        super().__init__()
        self.version = version

    def get_extra_state(self) -> int:
        return self.version

    def set_extra_state(self, state: int) -> None:
        if state != self.version:
            raise RuntimeError("a state of another version")


def test_the_random_state_is_put_back_if_the_last_part_fails(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"

    def parts(model: nn.Module) -> dict[str, Any]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return {"model": model, "optimizer": optimizer, "identity": {**IDENTITY, "iterations": 9}}

    torch.manual_seed(5)
    save_checkpoint(
        path, state=State().to_dict(), **parts(nn.Sequential(nn.Linear(2, 2), Choosy(1)))
    )
    torch.manual_seed(6)
    other = nn.Sequential(nn.Linear(2, 2), Choosy(2))
    before, weights = torch.get_rng_state(), digest(snapshot(other))
    with pytest.raises(FileError, match="another version"):
        restore(path, **parts(other), validates=False, stepped=True)
    assert torch.equal(torch.get_rng_state(), before)
    assert digest(snapshot(other)) == weights
