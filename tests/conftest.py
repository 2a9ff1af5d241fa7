"""Every test starts from one thread and the same seeds, so that no result depends on chance."""

import random

import numpy as np
import pytest
import torch
from hypothesis import register_random, settings

pytest_plugins = ("cli_fixtures",)

# The same examples in every run. `make fuzz` looks for new ones, with seeds that it prints.
settings.register_profile("repeatable", derandomize=True, database=None, deadline=None)
settings.register_profile("fuzz", derandomize=False, database=None, deadline=None)
settings.load_profile("repeatable")


class TorchRandom:
    """torch's global random numbers in the form that hypothesis asks for: it seeds them for every
    example, as it does Python's and numpy's, so that a failing example fails again."""

    seed = staticmethod(torch.manual_seed)
    getstate = staticmethod(torch.get_rng_state)
    setstate = staticmethod(torch.set_rng_state)


TORCH_RANDOM = TorchRandom()  # hypothesis keeps only a weak reference
register_random(TORCH_RANDOM)


@pytest.fixture(autouse=True)
def _repeatable() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
