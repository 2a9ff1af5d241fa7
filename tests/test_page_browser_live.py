"""The page in a real browser while runs go on: new points and new runs appear by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest
from browser_fixtures import Open
from playwright.sync_api import Page

from snip.cli.repeating import command_of
from snip.data import load
from snip.page.book import Book
from snip.page.server import PageServer


@contextmanager
def serving(*paths: Path, score: bool = True) -> Iterator[PageServer]:
    with PageServer(Book(paths, command_of, load, score=score)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


def wait_until(page: Page, script: str) -> None:
    """Wait for a script to be true; playwright's own way is eval, which the policy forbids."""
    for _ in range(300):
        if page.evaluate(script):
            return
        page.wait_for_timeout(100)
    pytest.fail(f"it never came to {script}")


def test_new_points_appear_without_reloading(opened: Open, runs: Path, tmp_path: Path) -> None:
    growing = tmp_path / "growing"
    growing.mkdir()
    for name in ("config.json", "masks.safetensors", "report.json"):
        (growing / name).write_bytes((runs / "a" / name).read_bytes())
    lines = (runs / "a" / "metrics.jsonl").read_text().splitlines(keepends=True)
    (growing / "metrics.jsonl").write_text("".join(lines[:2]))
    with serving(growing) as server:
        page = opened(server.address)
        page.evaluate("window.same = true")
        assert page.evaluate("snip.chartPoints()[0]") == [10, 20]
        assert "20 of 40 iterations evaluated" in page.inner_text("main")
        page.click("#tab-classes")
        page.fill("#class", "7")
        with (growing / "metrics.jsonl").open("a") as file:
            file.write(lines[2])
        wait_until(page, "snip.chartPoints()[0].length === 3")
        assert "30 of 40 iterations evaluated" in page.inner_text("main")
        for name in ("metrics.jsonl", "result.json"):
            (growing / name).write_bytes((runs / "a" / name).read_bytes())
        wait_until(page, "snip.chartPoints()[0].length === 4")
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
