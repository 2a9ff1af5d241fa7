"""A finished run for the tests of the page, and a copy of it to be damaged."""

from pathlib import Path

import pytest
from page_parts import small_run


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
