"""The table of the zoo: each row is measured once, also with another checkout of Snip."""

import json
from pathlib import Path

import pytest
import zoo
from zoo_table import spread, table


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
    before, now = found["rows"]
    assert "too old for this Python" in before["failed"]
    assert "failed" not in now
    assert {"prune", "on paths", "SGD", "AdamW", "inference"} <= set(now)
    assert "90% before: FAILED: the process ended with 1: ImportError: too old" in first
    assert "90% now   : prune " in first
    assert "1 of 2 rows, " in progress

    # The row of this checkout stays as it is, although there is a new commit.
    monkeypatch.setattr(zoo, "commit_of", lambda _: "abd")
    zoo.main([*words, "--before-alone"])
    capsys.readouterr()
    assert [row["commit"] for row in json.loads(out.read_text())["rows"]] == ["abd", "abc"]

    out.write_text(json.dumps(found))
    monkeypatch.setattr(zoo, "commit_of", lambda _: "abc")
    monkeypatch.setattr(zoo, "measured", None)  # not to be called again
    zoo.main(words)
    assert capsys.readouterr() == (first, "")


def test_measuring_only_another_checkout_needs_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        zoo.main(["--before-alone"])
    assert "give that as well" in capsys.readouterr().err


def test_a_second_call_keeps_the_rows_of_the_first(
    older: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """There is no zoo_row.py in this checkout, so that every row fails at once."""
    out = tmp_path / "zoo.json"
    commits = iter("aabc")
    monkeypatch.setattr(zoo, "commit_of", lambda _: next(commits))
    monkeypatch.setattr(zoo, "HERE", older / "bench")
    monkeypatch.setattr(zoo, "build_kernels", lambda _: None)
    calls = ["tied --sparsity 0.9", "gan --sparsity 0.9", "tied --sparsity 0.98"]
    for call in [*calls, "tied --sparsity 0.9"]:
        zoo.main([*call.split(), "--seconds", "0", "--out", str(out)])
    rows = json.loads(out.read_text())["rows"]
    found = {(row["network"], row["sparsity"]): row for row in rows}
    assert len(rows) == len(found) == 3
    assert all(row["date"].startswith("20") for row in rows)
    # The last call measured a row of the first again, with another commit.
    places = ("tied", 0.9), ("gan", 0.9), ("tied", 0.98)
    assert [found[place]["commit"] for place in places] == ["c", "a", "b"]
    printed = capsys.readouterr().out
    assert printed.splitlines()[-4].startswith("| network | prune at 90% / 98% | on paths")
    assert printed.splitlines()[-2].startswith("| gan | failed / - |")
    assert printed.splitlines()[-1].startswith("| tied | failed / failed |")


def test_rows_of_an_older_file_get_its_date_and_what_else_it_says_stays(tmp_path: Path) -> None:
    rows = [{"network": "tied"}, {"network": "gan", "date": "2027-01-01"}]
    content = {"date": "2026-11-16", "said": "by hand", "rows": rows}
    (tmp_path / "zoo.json").write_text(json.dumps(content))
    found = zoo.kept(tmp_path / "zoo.json")
    assert [row["date"] for row in found["rows"]] == ["2026-11-16", "2027-01-01"]
    assert found["said"] == "by hand"
    assert zoo.kept(tmp_path / "none.json") == zoo.kept(None) == {"rows": []}


def test_the_table_has_both_sparsities_in_a_line() -> None:
    common = {"network": "tied", "checkout": "now", "commit": "abc", "date": "2026-11-17T01:02:03"}
    low = common | {"sparsity": 0.9, "prune": 3.0, "on paths": 0.5, "SGD": 1, "SGD engine": "dense"}
    high = common | {"sparsity": 0.98, "prune": 4.0, "on paths": None, "failed": "why"}
    *_, line = table([high, low]).splitlines()
    assert line == (
        "| tied | 3.00x / 4.00x | 50% / ? | 1.00x (dense) / failed | - / failed | - / failed "
        "| 2026-11-17 abc |"
    )


@pytest.mark.parametrize(
    ("commit", "seconds", "same"), [("a", 1, True), ("b", 1, False), ("a", 2, False)]
)
def test_another_time_or_commit_is_measured_again(commit: str, seconds: int, same: bool) -> None:
    row = {"commit": "a", "seconds": 1}
    assert zoo.is_same(row, {"commit": commit, "seconds": seconds}) is same
    assert not zoo.is_same(row, None)


def test_a_place_that_is_no_checkout_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        zoo.main(["--before", str(tmp_path)])
    assert "is no checkout of Snip" in capsys.readouterr().err


def test_the_spread_over_networks_is_of_this_checkout_alone() -> None:
    rows = [
        {"checkout": "now", "sparsity": 0.98, "SGD": ratio, "AdamW": None}
        for ratio in (5.0, 1.0, 2.0)
    ]
    rows.append({"checkout": "before", "sparsity": 0.98, "SGD": 9.0})
    assert spread(rows) == ("SGD at 98%, 3 networks: lowest 1.00x, median 2.00x, highest 5.00x")
