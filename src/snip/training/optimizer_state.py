"""The saved state of an optimiser: all of it is checked before any of it is loaded.

`load_state_dict` takes tensors of any shape and leaves out what is missing; the next step would
fail, or go another way than the run that was saved.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any

import torch

from snip.common.checks import LARGEST, differences, fits

# What may be set before each step, so that a checkpoint has the value of its last one.
SCHEDULED = {"lr": "learning rate", "weight_decay": "weight decay"}
ODD_SHAPE = (2, 3)  # of a parameter: nothing else that an optimiser keeps has it


def load_optimizer(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Load what `check_optimizer` accepted. The options are those that the optimiser has."""
    optimizer.load_state_dict({**optimizer.state_dict(), "state": saved["state"]})


def check_optimizer(
    optimizer: torch.optim.Optimizer,
    saved: Mapping[str, Any],
    *,
    steps: int | None,
    reset: bool = False,
) -> None:
    """ValueError unless this optimiser can have such a state after so many steps; None: any.

    `reset`: whether its counts may be zero, as of hooks that make an optimiser as if fresh.
    """
    _check_groups(saved["param_groups"], optimizer.state_dict()["param_groups"])
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    state, kept = saved["state"], _kept_of_a_parameter(optimizer)
    unknown = [number for number in state if number not in range(len(parameters))]
    if unknown:
        raise ValueError(f"it has the state of {len(unknown)} parameters that there are not")
    if kept and steps and not state:
        raise ValueError(f"the optimiser keeps {', '.join(kept)}, and there is nothing of it")
    for number, parts in state.items():
        found = {name: part for name, part in parts.items() if part is not None}
        if found.keys() != kept.keys():
            raise ValueError(f"the optimiser keeps {sorted(kept)} of parameter {number}")
        for name, part in found.items():
            if tuple(kept[name].shape) == ODD_SHAPE:
                _check_like(part, parameters[number], f"its {name} of parameter {number}")
            else:
                what = f"its {name} of parameter {number}"
                _check_count(part, kept[name], steps, what, least=0 if reset else 1)


def _check_groups(found: Any, own: list[dict[str, Any]]) -> None:
    """Refuse options that are not this run's, but for those that follow the schedule."""
    for group, expected in zip(found, own, strict=True):
        for name, called in SCHEDULED.items():
            if not fits(group[name], float):
                raise ValueError(f"the {called} of its optimiser is no number")
        changed = differences({**group, **{name: expected[name] for name in SCHEDULED}}, expected)
        if changed:
            raise ValueError(f"the optimiser of this run is another one: {changed}")


def _kept_of_a_parameter(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """What such an optimiser keeps of a parameter, by its names: seen after a step of another."""
    parameter = torch.nn.Parameter(torch.zeros(ODD_SHAPE))
    parameter.grad = torch.zeros(ODD_SHAPE)
    # AdamW is Adam with a default of its own that its constructor does not take.
    taken = inspect.signature(type(optimizer)).parameters
    defaults = {name: value for name, value in optimizer.defaults.items() if name in taken}
    other = type(optimizer)([parameter], **defaults)
    other.step()
    return {name: part for name, part in other.state[parameter].items() if part is not None}


def _check_like(part: Any, parameter: torch.Tensor, what: str) -> None:
    """ValueError unless it is a tensor like the parameter, such as momentum_buffer or exp_avg."""
    if not isinstance(part, torch.Tensor):
        raise ValueError(f"{what} is no tensor")
    if part.shape != parameter.shape or part.dtype != parameter.dtype:
        raise ValueError(
            f"{what} is {part.dtype} {list(part.shape)}, and the parameter is {parameter.dtype} "
            f"{list(parameter.shape)}"
        )


def _check_count(
    part: Any, expected: torch.Tensor, steps: int | None, what: str, *, least: int
) -> None:
    """ValueError unless it is a number of steps that may have been done, kept as it is expected."""
    if not isinstance(part, torch.Tensor) or part.dtype != expected.dtype or part.ndim:
        raise ValueError(f"{what} is no number of steps")
    done = float(part)
    if not least <= done <= (LARGEST if steps is None else steps) or done != math.floor(done):
        raise ValueError(f"{what} is {done}, and {steps} steps were done")
