"""What the tests of the native kernels share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from snip.engine import build, kernels
from snip.engine.fused import update
from snip.engine.kernels.library import forget_instruction_set

COMPILER = build.find_compiler()


@pytest.fixture(params=kernels.instruction_sets() if kernels.available() else ())
def instruction_set(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The test once with each instruction set of this processor."""
    monkeypatch.setenv("SNIP_KERNELS", request.param)
    forget_instruction_set()
    yield request.param
    forget_instruction_set()


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No timing of a layer is remembered from an earlier test."""
    monkeypatch.setenv("SNIP_CACHE", str(tmp_path))


@pytest.fixture
def native_steps(monkeypatch) -> list[str]:
    """The names of the native updates that ran."""
    names: list[str] = []
    real = update.native_update

    def noting(name, *arguments) -> None:
        names.append(name)
        real(name, *arguments)

    monkeypatch.setattr(update, "native_update", noting)
    return names
