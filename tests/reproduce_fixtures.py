"""Two rows of table 1, run with two seeds each, for the tests of `snip reproduce`."""

import json
import shutil
from pathlib import Path

import pytest

from snip.cli import main
from snip.runs.folder import RESULT

TRIAL = ["--scale", "0.0002"]  # 15 steps where the paper has 75,000
TABLE = ["reproduce", "table1", *TRIAL, "--only", "snip-0.95", "--only", "reference"]
NAME = "table1-scale-0.0002"


@pytest.fixture(scope="session")
def reproduced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where two rows of table 1 were run, with two seeds each, in two processes."""
    folder = tmp_path_factory.mktemp("reproduced")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main([*TABLE, "--seeds", "2", "--jobs", "2"]) == 0
    return folder


@pytest.fixture
def reproduced_copy(reproduced: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder, to work in."""
    shutil.copytree(reproduced, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return tmp_path / "copy"


def record() -> dict:
    return json.loads(Path(f"results/{NAME}.json").read_text())


def changed() -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in Path("runs").rglob(RESULT)}
