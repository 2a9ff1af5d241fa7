"""The table of the zoo: each row is measured once, also with another checkout of Snip."""

import json
from pathlib import Path

import pytest
import zoo


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """A checkout whose package cannot be imported."""
    engine = tmp_path / "older/src/snip/engine"
    engine.mkdir(parents=True)
    (engine / "_kernels.so").touch()
    (engine.parent / "__init__.py").write_text("raise ImportError('too old for this Python')\n")
    return tmp_path / "older"


def test_rows_are_data_that_is_measured_once(
    older: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(zoo, "commit_of", lambda _: "abc")  # somebody may commit meanwhile
    out = tmp_path / "zoo.json"
    words = [
        "tied",
        "--sparsity",
        "0.9",
        "--seconds",
        "0",
        "--before",
        str(older),
        "--out",
        str(out),
    ]
    zoo.main(words)
    first, progress = capsys.readouterr()
    found = json.loads(out.read_text())
    assert {"command", "seed", "machine", "date", "versions"} <= set(found)
    before, after = found["rows"]
    assert "too old for this Python" in before["failed"]
    assert "failed" not in after
    assert {"prune", "on paths", "SGD", "AdamW", "inference"} <= set(after)
    assert "90% before: FAILED: the process ended with 1: ImportError: too old" in first
    assert "90% after : prune " in first
    assert "1 of 2 rows, " in progress

    monkeypatch.setattr(zoo, "measured", None)  # not to be called again
    zoo.main(words)
    assert capsys.readouterr() == (first, "")


def test_another_time_or_commit_is_another_row(tmp_path: Path) -> None:
    rows = [dict.fromkeys(zoo.KEY, 1), dict.fromkeys(zoo.KEY, 1) | {"commit": "b", "SGD": 2.0}]
    (tmp_path / "zoo.json").write_text(json.dumps({"rows": rows}))
    assert set(zoo.kept_rows(tmp_path / "zoo.json")) == {(1, 1, 1, 1, 1), (1, "b", 1, 1, 1)}
    assert zoo.kept_rows(tmp_path / "none.json") == zoo.kept_rows(None) == {}


def test_a_place_that_is_no_checkout_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        zoo.main(["--before", str(tmp_path)])
    assert "is no checkout of Snip" in capsys.readouterr().err
