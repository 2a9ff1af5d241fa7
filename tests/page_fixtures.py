"""Finished runs and their pages for the tests of the page, and a copy of a run to be damaged."""

from pathlib import Path

import pytest
from page_parts import made, small_run


@pytest.fixture(scope="session")
def page_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("page") / "run")


@pytest.fixture
def page_copy(page_run: Path, tmp_path: Path) -> Path:
    """A copy of a finished run, to be damaged."""
    folder = tmp_path / "copy"
    folder.mkdir()
    for path in page_run.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    small_run(folder / "a")
    small_run(folder / "b", "lenet-5-caffe", 0.98, every=40)
    small_run(folder / "c", sparsity=0)
    return folder


@pytest.fixture(scope="session")
def several(runs: Path) -> Path:
    return made(runs.parent / "several.html", runs)


@pytest.fixture(scope="session")
def single(runs: Path) -> Path:
    return made(runs.parent / "single.html", runs / "a")
