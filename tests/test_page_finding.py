"""Which runs the page finds, and how it tells of damaged and unfinished ones."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from page_parts import TRAIN, page_of, small_run

from snip.cli.repeating import command_of
from snip.common.errors import FileError, InputError
from snip.common.lock import locked
from snip.common.text import duration, percent
from snip.data import load
from snip.page.book import Book
from snip.page.finding import Run, chosen_folders, read_run
from snip.page.progress import before
from snip.page.story import Shown
from snip.page.telling import told
from snip.reports.report import Report
from snip.runs import RunConfig, RunResult, run
from snip.runs.folder import clear
from snip.runs.listing import listed

pytestmark = pytest.mark.usefixtures("empty_folder")


@pytest.fixture
def phases(tmp_path: Path) -> Path:
    """A run of a method that trains, as it is when its own training has not begun yet."""
    folder = small_run(tmp_path / "runs" / "lwc", every=1000, method="lwc")
    clear(folder)
    return folder


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
    assert "Stopped, 20 of 40 iterations evaluated" in html
    assert "so far" in html
    (page_copy / "metrics.jsonl").unlink()
    assert "Stopped, no evaluation yet" in page_of(page_copy)


def shown_of(folder: Path) -> Shown:
    return told(read_run(folder), "run-0", command_of).shown


def test_without_a_validation_part_nothing_was_selected_by_it(
    page_run: Path, tmp_path: Path
) -> None:
    assert shown_of(page_run).facts["Selected"].endswith("by validation error")
    train = dataclasses.replace(TRAIN, validation=0.0)
    config = RunConfig("lenet-300-100", 0, train=train)
    folder = run(config, folder=tmp_path / "run", progress=False).folder
    told = "iteration 40, the last, because nothing was held out for validation"
    assert shown_of(folder).facts["Selected"] == told


def test_time_is_left_only_to_a_run_that_is_at_work(page_copy: Path) -> None:
    lines = (page_copy / "metrics.jsonl").read_text().splitlines(keepends=True)
    (page_copy / "result.json").unlink()
    (page_copy / "metrics.jsonl").write_text(lines[0])
    assert shown_of(page_copy).left == ""
    with locked(page_copy):
        shown = shown_of(page_copy)
        assert shown.state == "running, 10 of 40 iterations evaluated"
        assert shown.left == duration(listed(page_copy).seconds_left)
        assert shown.progress == 0.25


def test_a_method_that_trains_is_shown_in_the_phase_that_it_is_in(phases: Path) -> None:
    """What `snip runs` says of it, and its curve."""
    run = told(read_run(phases), "run-0", command_of)
    found = listed(phases)
    assert found.phase.startswith("round-")
    assert run.shown.state == f"stopped, {found.phase}: {found.done} iterations evaluated"
    assert run.shown.took == f"{duration(found.seconds)} so far in {found.phase}"
    assert run.shown.error.endswith(f"% so far in {found.phase}")
    assert run.curves["iterations"] == [found.done]
    assert run.curves["label"] == f"{run.shown.name}, {found.phase}"


def test_a_live_page_sees_what_changes_in_phases_and_who_is_at_work(phases: Path) -> None:
    book = Book([phases], command_of, load, score=False)
    assert "Stopped, round-" in book.live()
    path = phases / "phases" / listed(phases).phase / "metrics.jsonl"
    before = json.loads(book.live())["curves"][0]["iterations"]
    with path.open("a") as file:
        file.write(path.read_text())
    assert json.loads(book.live())["curves"][0]["iterations"] == before * 2
    with locked(phases):
        assert "Running, round-" in book.live()
    assert "Stopped, round-" in book.live()


def test_what_trainings_before_took_reads_well_in_days_too(page_run: Path) -> None:
    result = RunResult.read(page_run)
    for seconds, text in ((61, "and 1:01 "), (3 * 86400, "and 3 days ")):
        cost = {"first training": {"iterations": 1, "seconds": seconds}}
        run = Run(page_run, result=dataclasses.replace(result, cost=cost))
        assert before(run) == f"{text}in the trainings before"
