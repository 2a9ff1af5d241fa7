"""Which runs the page finds, and how it tells of damaged and unfinished ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from page_parts import page_of

from snip.common.errors import FileError, InputError
from snip.common.figures import percent
from snip.page.finding import chosen_folders, read_run
from snip.reports.report import Report
from snip.runs import RunResult

pytestmark = pytest.mark.usefixtures("empty_folder")


def test_folders_of_folders_and_nothing_twice(page_run: Path, tmp_path: Path) -> None:
    assert chosen_folders([page_run.parent, page_run]) == [page_run]
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match=r"there is no run in .*empty"):
        chosen_folders([tmp_path / "empty"])
    with pytest.raises(FileError, match=r"there is no run at .*nowhere"):
        chosen_folders([tmp_path / "nowhere"])
    with pytest.raises(FileError, match="there is no run at"):
        chosen_folders([page_run / "config.json"])


def test_a_report_survives_its_file(page_run: Path) -> None:
    data = json.loads((page_run / "report.json").read_text())
    assert Report.from_dict(data).to_dict() == data
    for damage in (
        {"rows": 1},
        {"rows": [{"name": "x"}]},
        {"warnings": [1]},
        {"left_out": {"a": "b"}},
    ):
        with pytest.raises((InputError, TypeError, KeyError)):
            Report.from_dict(data | damage)


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "masks.safetensors", "report.json", "result.json"]
)
def test_a_damaged_run_is_shown_as_far_as_it_is(page_copy: Path, name: str) -> None:
    (page_copy / name).write_bytes(b"{damaged\n")
    run = read_run(page_copy)
    assert any(name in problem and "damaged" in problem for problem in run.problems)
    html = page_of(page_copy)
    assert "is damaged or of another version" in html
    assert "snip run --model lenet-300-100" in html
    if name != "report.json":
        assert "fc1.weight" in html
    if name != "result.json":
        assert run.changed.altered == (name,)
        assert "Files are no longer as the run left them" in html


def altered(folder: Path, **fields: object) -> None:
    data = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(data | fields))


AT_CHANCE = {"test_error": 0.95, "chance_error": 0.9}


@pytest.mark.parametrize(
    "fields",
    [
        {"engine": {"step_seconds": 5}},
        {"engine": {"step_seconds": {"dense": "slow"}}},
        AT_CHANCE | {"test_images": -5},
        AT_CHANCE | {"test_images": 0},
        AT_CHANCE | {"chance_error": 7.0, "test_images": 10},
        {"cost": {"first training": {"seconds": 1e19}}},
    ],
)
def test_values_that_nobody_foresaw_leave_the_other_runs_their_page(
    page_copy: Path, page_run: Path, fields: dict[str, object]
) -> None:
    altered(page_copy, **fields)
    html = page_of(page_run, page_copy)
    assert "2 runs" in html
    assert f"{percent(RunResult.read(page_run).test_error)}" in html
    assert "Files are no longer as the run left them: altered: result.json" in html
    if "cost" not in fields:
        assert "result.json is damaged or of another version (" in html
        assert "snip run --model lenet-300-100" in page_of(page_copy)  # the rest of it is shown


def test_a_run_at_chance_whose_masks_are_damaged_is_told(page_copy: Path, page_run: Path) -> None:
    altered(page_copy, **AT_CHANCE, test_images=10_000)
    (page_copy / "masks.safetensors").write_bytes(b"{damaged")
    html = page_of(page_run, page_copy)
    assert "The test error is that of guessing (90.00%" in html
    assert "masks.safetensors is damaged or of another version" in html


def test_a_run_of_another_version_is_shown_beside_others(page_copy: Path, page_run: Path) -> None:
    config = json.loads((page_copy / "config.json").read_text())
    (page_copy / "config.json").write_text(json.dumps(config | {"temperature": 3}))
    html = page_of(page_run, page_copy)
    assert "unknown run option" in html
    assert "2 runs" in html
    assert "cannot be read" in page_of(page_copy)


def test_an_unfinished_run_says_how_far_it_is(page_copy: Path) -> None:
    lines = (page_copy / "metrics.jsonl").read_text().splitlines(keepends=True)
    for name in ("result.json", "sums.json", "checkpoint.pt"):
        (page_copy / name).unlink()
    (page_copy / "metrics.jsonl").write_text("".join(lines[:2]) + '{"iteration": 3')
    html = page_of(page_copy)
    assert "20 of 40 iterations evaluated" in html
    assert "so far" in html
    (page_copy / "metrics.jsonl").unlink()
    assert "o evaluation yet" in page_of(page_copy)
