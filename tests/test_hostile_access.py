"""Folders without access, names that are too long, outputs that take nothing: one sentence each."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from cli_fixtures import RUN, Snip
from processes import SEES_THIS_TREE, run_python
from safetensors.torch import save_file

import snip as library
from snip.common.errors import FileError
from snip.training import load_checkpoint

pytestmark = pytest.mark.usefixtures("empty_folder")
TOO_LONG = "a" * 300
# Root may read everything, unless it gives the right to do so away.
CAPABILITIES = "-dac_override,-dac_read_search"
WITHOUT_RIGHTS = ["setpriv", "--bounding-set", CAPABILITIES, "--inh-caps", CAPABILITIES]
# Says what each command and each reader makes of places without access.
ASK = f"""
import contextlib, io, json, os
from pathlib import Path
import snip
from snip.cli import main
from snip.training import load_checkpoint

RUN = {RUN!r}
said = {{}}
for line, command in {{
    "inspect": ["inspect", "priv/run"],
    "run in": [*RUN, "--folder", "priv/new"],
    "run with data": [*RUN, "--data-dir", "priv/x"],
    "data": ["data"],
    "inspect a result": ["inspect", "run"],
    "run with a result": [*RUN, "--folder", "run"],
}}.items():
    os.environ.pop("SNIP_DATA", None)
    if line == "data":
        os.environ["SNIP_DATA"] = "priv"
    with contextlib.redirect_stderr(io.StringIO()) as error:
        said[line] = [main(command), error.getvalue()]
for read, path in ((load_checkpoint, "priv/run/checkpoint.pt"), (snip.Masks.load, "m")):
    try:
        read(Path(path))
    except snip.common.errors.FileError as error:
        said[path] = [2, "error: " + str(error)]
print(json.dumps(said))
"""


@pytest.fixture
def priv(empty_folder: None, finished_run: Path) -> Iterator[None]:
    """A folder that may not be entered, and a result and masks that may not be read."""
    shutil.copytree(finished_run, "priv/run")
    shutil.copytree(finished_run, "run")
    shutil.copy(finished_run / "masks.safetensors", "m")
    for name in ("priv", "run/result.json", "m"):
        Path(name).chmod(0)
    yield
    Path("priv").chmod(0o755)


@pytest.mark.usefixtures("priv")
def test_places_without_access() -> None:
    if os.getuid() == 0 and shutil.which("setpriv") is None:
        pytest.skip("root may read everything, and there is no setpriv to give that up")
    done = subprocess.run(
        [*(WITHOUT_RIGHTS if os.getuid() == 0 else ()), sys.executable, "-c", ASK],
        env=os.environ | SEES_THIS_TREE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert len(said) == 8
    for line, (code, error) in said.items():
        assert (code, "Traceback" in error) == (2, False), line
        assert error.splitlines()[-1].startswith("error: "), line
        assert "ermission denied" in error, (line, error)


def test_names_that_are_too_long(snip: Snip) -> None:
    for arguments in (
        ["inspect", TOO_LONG],
        [*RUN, "--folder", TOO_LONG],
        [*RUN, "--data-dir", TOO_LONG],
        ["data", "--data-dir", TOO_LONG],
    ):
        code, _, error = snip(*arguments)
        assert (code, "file name too long" in error) == (2, True), error
    for read in (load_checkpoint, library.Masks.load):
        with pytest.raises(FileError, match="file name too long"):
            read(Path(TOO_LONG))


@pytest.mark.parametrize(
    ("where", "status", "word"),
    [(">/dev/full", 2, "No space left"), (">&-", 2, "closed"), ("| true", 0, ""), ("2>&-", 0, "")],
)
def test_an_output_that_takes_nothing(where: str, status: int, word: str) -> None:
    for arguments in ("--version", "--help", "run --help"):
        line = f"set -o pipefail; '{sys.executable}' -m snip {arguments} {where}"
        done = subprocess.run(
            ["bash", "-c", line],
            env=os.environ | SEES_THIS_TREE,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, "Traceback" in done.stderr) == (status, False), done.stderr
        assert done.stderr.count("\n") == (1 if status else 0)
        assert word in done.stderr


def test_a_table_without_an_output(
    snip: Snip, finished_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    code, _, error = snip("inspect", finished_run)
    assert (code, "standard output is closed" in error) == (2, True)
    monkeypatch.setattr(sys, "stderr", None)
    assert snip("inspect", "none")[0] == 2


def test_a_control_character_of_a_file_stays_in_the_file() -> None:
    save_file({"a": torch.ones(2)}, "m", metadata={"format": "snip-masks-\x1b[31m"})
    said = run_python("import snip; snip.Masks.load('m')").stderr
    assert "FileError" in said
    assert r"\x1b[31m" in said
    assert "\x1b" not in said
