"""The page in a real browser while runs go on: new points and new runs appear by themselves."""

from __future__ import annotations

import json
from pathlib import Path

from browser_fixtures import Open, wait_until
from page_live_parts import begun, error, serving
from playwright.sync_api import Page


def shown_errors(page: Page) -> list[str]:
    return page.locator("#curve-runs .value").all_inner_texts()


def wait_for_error(page: Page, wanted: str) -> None:
    """Wait until the curve ends in this value."""
    shown = "document.querySelector('#curve-runs .value').textContent"
    wait_until(page, f"{shown} === {json.dumps(wanted)}")


def test_new_points_appear_without_reloading(opened: Open, runs: Path, tmp_path: Path) -> None:
    growing = tmp_path / "growing"
    lines = begun(growing, runs / "a", "masks.safetensors", "report.json")
    (growing / "metrics.jsonl").write_text("".join(lines[:2]))
    with serving(growing) as server:
        page = opened(server.address)
        page.evaluate("window.same = true")
        assert shown_errors(page) == [error(lines[1])]
        assert "20 of 40 iterations evaluated" in page.inner_text("main")
        page.click("#tab-classes")
        page.fill("#class", "7")
        with (growing / "metrics.jsonl").open("a") as file:
            file.write(lines[2])
        wait_for_error(page, error(lines[2]))
        assert "30 of 40 iterations evaluated" in page.inner_text("main")
        for name in ("metrics.jsonl", "result.json"):
            (growing / name).write_bytes((runs / "a" / name).read_bytes())
        wait_for_error(page, error(lines[3]))
        assert "The test error is" in page.inner_text("header")
        assert page.evaluate("window.same")  # it was never loaded anew
        assert page.input_value("#class") == "7"
        assert page.complaints == []
        assert {url.removeprefix(server.address) for url in page.requests} == {"", "live.json"}
    wait_until(page, "document.getElementById('live').textContent.includes('No longer live')")


def test_a_new_run_appears_too(opened: Open, runs: Path, tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(runs / "a")
    with serving(tmp_path, score=False) as server:
        page = opened(server.address)
        assert page.locator("#run").count() == 0
        (tmp_path / "b").symlink_to(runs / "b")
        page.wait_for_selector("#run option >> nth=1", state="attached", timeout=60_000)


def test_what_was_pruned_appears_when_the_masks_do(
    opened: Open, runs: Path, tmp_path: Path
) -> None:
    young = tmp_path / "young"
    begun(young, runs / "a")
    with serving(young, score=False) as server:
        page = opened(server.address)
        assert "Not known: there are no masks" in page.inner_text("#pruned")
        assert page.locator("#tab-own").is_hidden()
        for name in ("report.json", "masks.safetensors"):
            (young / name).write_bytes((runs / "a" / name).read_bytes())
        page.wait_for_selector("#tab-own", state="visible")
        assert "fc1.weight" in page.inner_text("#pruned")
        assert page.complaints == []


def test_a_part_of_the_curves_that_is_looked_at_stays(
    opened: Open, runs: Path, tmp_path: Path
) -> None:
    growing = tmp_path / "growing"
    lines = begun(growing, runs / "a")
    (growing / "metrics.jsonl").write_text("".join(lines[:3]))
    with serving(growing, score=False) as server:
        page = opened(server.address)
        place = page.locator("#curves .u-over")
        place.scroll_into_view_if_needed()
        box = place.bounding_box()

        def below_pointer(share: float) -> list[str]:
            """The value at this share of the chart's width."""
            page.mouse.move(box["x"] + share * box["width"], box["y"] + box["height"] / 2)
            return shown_errors(page)

        assert below_pointer(0.01) == [error(lines[0])]
        below_pointer(0.45)  # of the points 10, 20 and 30 only the second is between the two
        page.mouse.down()
        below_pointer(0.95)
        page.mouse.up()
        assert below_pointer(0.01) == [error(lines[1])]
        with (growing / "metrics.jsonl").open("a") as file:
            file.write(lines[3])
        wait_until(page, "document.querySelector('main').innerText.includes('40 of 40')")
        assert below_pointer(0.01) == [error(lines[1])]
        place.dblclick()  # which shows all of it again
        assert below_pointer(0.01) == [error(lines[0])]
        assert below_pointer(0.99) == [error(lines[3])]
        assert page.complaints == []
