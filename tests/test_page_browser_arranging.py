"""A page of many runs in a real browser: words choose runs everywhere on it, and order them."""

import shutil
from pathlib import Path

import pytest
from browser_fixtures import Open, pixels, quiet, wait_for_change, wait_until
from page_live_parts import begun, error, serving
from page_parts import made, small_run
from playwright.sync_api import Page

ROWS = "[data-live=overview] tbody tr"
FOLDS = "details[data-of]"  # of the commands that repeat the runs


@pytest.fixture(scope="module")
def many(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four runs, of which the last was scored with fewer images than the first."""
    folder = tmp_path_factory.mktemp("many")
    for name in "abc":
        shutil.copytree(runs / name, folder / name)
    small_run(folder / "d", score_batch_size=7)
    return folder


def names(page: Page, selector: str) -> list[str]:
    """The runs that are shown at a place, in their order."""
    shown = f"{selector}:not([hidden])"
    return page.eval_on_selector_all(shown, "all => all.map(one => one.dataset.of)")


def test_words_choose_runs_everywhere(opened: Open, many: Path, tmp_path: Path) -> None:
    page = opened(made(tmp_path / "many.html", many))
    every = ["run-0", "run-1", "run-2", "run-3"]
    places = (ROWS, "#run option", "#curve-runs li", "[data-live=time] tr[data-of]", FOLDS)
    assert all(names(page, place) == every for place in places)
    curves = pixels(page, "#curves canvas")
    page.fill("#filter", "snip LENET-300")
    assert all(names(page, place) == ["run-0", "run-3"] for place in places)
    assert page.inner_text("#filter-count") == "2 of 4"
    wait_for_change(page, "#curves canvas", curves)
    page.fill("#filter", "score batch size 7")
    assert names(page, ROWS) == ["run-3"]
    compared = page.locator("[data-runs]:not([hidden])")
    assert compared.count() == 1
    assert "score batch size 7" in compared.inner_text()
    fold = compared.locator("details.more")  # a paragraph of settings, which few want to read
    assert "iterations 40, there 75,000" not in fold.inner_text()
    fold.click()
    assert "iterations 40, there 75,000" in fold.inner_text()
    assert page.input_value("#run") == "run-3"  # what is looked at is one of those that are shown
    assert page.locator("[data-run=run-3]").is_visible()
    page.fill("#filter", "nothing has this")
    assert names(page, ROWS) == []
    page.fill("#filter", "")
    assert all(names(page, place) == every for place in places)
    assert quiet(page)


def test_runs_in_order(opened: Open, many: Path, tmp_path: Path) -> None:
    page = opened(made(tmp_path / "many.html", many))
    runs = page.evaluate("snip.data.curves")
    page.select_option("#run", "run-1")
    for by in ("error", "kept", "seconds"):
        page.select_option("#order", by)
        assert page.input_value("#run") == "run-1"
        expected = [run["key"] for run in sorted(runs, key=lambda run: run[by] or float("inf"))]
        assert names(page, ROWS) == names(page, "#curve-runs li") == expected
    page.emulate_media(color_scheme="dark")  # which draws the list of curves anew
    wait_until(page, "document.querySelectorAll('#curve-runs li').length === 4")
    assert names(page, "#curve-runs li") == expected
    page.select_option("#order", "")
    assert names(page, ROWS) == [run["key"] for run in runs]
    assert quiet(page)


def test_a_choice_stays_while_runs_go_on(opened: Open, many: Path, runs: Path, tmp_path: Path):
    for name in "abc":
        (tmp_path / name).symlink_to(many / name)
    lines = begun(tmp_path / "d", runs / "a", "masks.safetensors", "report.json")
    (tmp_path / "d" / "metrics.jsonl").write_text(lines[0])
    with serving(tmp_path, score=False) as server:
        page = opened(server.address)
        page.fill("#filter", "snip")
        assert names(page, ROWS) == ["run-0", "run-1", "run-3"]
        (tmp_path / "d" / "metrics.jsonl").write_text("".join(lines[:2]))
        shown = "document.querySelector('#curve-runs [data-of=run-3] .value').textContent"
        wait_until(page, f"{shown} === '{error(lines[1])}'")
        assert names(page, ROWS) == ["run-0", "run-1", "run-3"]
        assert page.input_value("#filter") == "snip"
        assert page.complaints == []


def test_whoever_reads_a_live_page_is_left_alone(opened: Open, many: Path, tmp_path: Path) -> None:
    for name in "abcd":
        (tmp_path / name).symlink_to(many / name)
    with serving(tmp_path, score=False) as server:
        page, first = opened("about:blank"), []
        # A busy server answers for the first time when something has been chosen already.
        page.route("**/live.json", lambda route: first.append(route), times=1)
        page.goto(server.address)
        page.select_option("#order", "seconds")
        page.click(f"{FOLDS} >> nth=2")
        page.focus("details[open] summary")
        selected = "getSelection().selectAllChildren(document.querySelector('details[open] code'))"
        page.evaluate(selected)
        first.pop().continue_()
        looks = "performance.getEntriesByName(new URL('live.json', location).href).length"
        wait_until(page, f"{looks} >= 3")
        assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
        assert page.evaluate("getSelection().toString()").startswith("snip run")
        assert page.complaints == []


def test_what_is_chosen_and_unfolded_stays_when_a_run_ends_or_begins(
    opened: Open, many: Path, tmp_path: Path
) -> None:
    for name in "abc":
        (tmp_path / name).symlink_to(many / name)
    begun(tmp_path / "d", many / "d", "masks.safetensors", "report.json", "metrics.jsonl")
    with serving(tmp_path, score=False) as server:
        page = opened(server.address)
        page.fill("#filter", "snip")
        page.select_option("#order", "error")
        page.select_option("#run", "run-1")
        page.click("details[data-of=run-1] summary")
        ended = "!document.querySelector('[data-live=overview] [data-of=run-3] progress')"
        assert not page.evaluate(ended)
        (tmp_path / "d" / "result.json").write_bytes((many / "d" / "result.json").read_bytes())
        wait_until(page, ended)
        unfolded = "all => all.filter(fold => fold.open).map(fold => fold.dataset.of)"
        assert page.eval_on_selector_all(FOLDS, unfolded) == ["run-1"]
        shutil.copytree(many / "a", tmp_path / "e")  # the page is loaded anew, with one run more
        page.wait_for_selector("#run option >> nth=4", state="attached")
        wait_until(page, "document.getElementById('filter').value === 'snip'")
        assert page.input_value("#order") == "error"
        assert page.locator("#run option:checked").inner_text().startswith("lenet-5-caffe")
        assert len(names(page, ROWS)) == 4 - 1 + 1  # all but the dense one


def test_a_page_of_few_runs_has_no_such_controls(opened: Open, several: Path) -> None:
    page = opened(several)
    assert page.locator("#filter").count() == 0
    assert quiet(page)
