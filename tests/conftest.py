"""Every test starts from one thread and the same seeds, so that no result depends on chance."""

import os
import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, register_random, settings

# What the shell of whoever runs the tests says about terminals and proxies is not theirs to know.
# Taken away here, before typer and rich are imported: they look once.
for _name in (
    "COLUMNS", "LINES", "TERMINAL_WIDTH", "FORCE_COLOR", "NO_COLOR", "PY_COLORS", "CLICOLOR_FORCE",
    "GITHUB_ACTIONS", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "SNIP_KERNELS", "SNIP_NODE",
    "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY",
):  # fmt: skip
    os.environ.pop(_name, None)

pytest_plugins = (
    "browser_fixtures",
    "cli_fixtures",
    "kernel_fixtures",
    "page_fixtures",
    "reproduce_fixtures",
)

# The same examples in every run. `make fuzz` looks for new ones, with seeds that it prints.
# On a busy machine an example may take any time to draw and to try.
PATIENT = {"database": None, "deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("repeatable", derandomize=True, **PATIENT)
settings.register_profile("fuzz", derandomize=False, **PATIENT)
settings.load_profile("repeatable")


def pytest_configure() -> None:
    """Without the native library a third of the tests would be skipped: end here instead."""
    from snip.engine import build
    from snip.engine.kernels import reason

    if reason() and not build.is_unwanted():
        raise pytest.UsageError(f"{reason()}; to test without it: SNIP_NO_KERNELS=1")


class TorchRandom:
    """torch's global random numbers in the form that hypothesis asks for: it seeds them for every
    example, as it does Python's and numpy's, so that a failing example fails again."""

    seed = staticmethod(torch.manual_seed)
    getstate = staticmethod(torch.get_rng_state)
    setstate = staticmethod(torch.set_rng_state)


TORCH_RANDOM = TorchRandom()  # hypothesis keeps only a weak reference
register_random(TORCH_RANDOM)


def seed_everything() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


def pytest_collectstart(collector: pytest.Collector) -> None:
    """A file of tests may draw numbers when it is imported."""
    seed_everything()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Fixtures of a whole file are made before those of the first test that asks for them."""
    seed_everything()


@pytest.fixture(autouse=True)
def _repeatable() -> None:
    seed_everything()


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test finds what earlier ones left in the user's cache, such as timings of layers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SNIP_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(params=["C++", "Python"])
def node(request, monkeypatch):
    """The test runs twice: with the node of autograd in C++, if it was built, and in Python."""
    from snip.engine.kernels.extension import extension, forget_extension

    if request.param == "Python":
        monkeypatch.setenv("SNIP_NODE", "python")
    forget_extension()
    if request.param == "C++" and extension() is None:
        pytest.skip("no node was built for this torch: python -m snip.engine.build")
    yield request.param
    monkeypatch.undo()
    forget_extension()
