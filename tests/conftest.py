"""Every test starts from one thread and one seed, so that results repeat."""

import pytest
import torch

pytest_plugins = ("cli_fixtures",)


@pytest.fixture(autouse=True)
def _repeatable() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
