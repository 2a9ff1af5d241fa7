"""The page in a real browser: it loads in silence, in the dark, in narrow windows and on paper."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from browser_fixtures import Open, pixels, quiet, wait_for_change
from playwright.sync_api import Page


def test_it_loads_in_silence_and_asks_for_nothing(
    opened: Open, several: Path, single: Path
) -> None:
    for path in (several, single):
        page = opened(path)
        page.wait_for_timeout(300)
        assert quiet(page)
        assert page.locator("#curves canvas").count() == 1
        assert len(pixels(page, "#own-picture")) > 500  # a blank picture has 200 characters


def test_the_page_tells_the_story_in_order(opened: Open, single: Path) -> None:
    page = opened(single)
    assert page.locator("h2").all_inner_texts() == [
        "What was pruned", "What survived", "How training went", "Beside the paper",
        "How long it took", "How to repeat it",
    ]  # fmt: skip
    text = page.inner_text("main")
    assert "13,331 of 266,610 connections were kept before training" in text
    assert "The paper reports 1.60%" in text
    assert "snip run --model lenet-300-100 --sparsity 0.95" in text


def test_everything_to_use_has_a_name(opened: Open, several: Path) -> None:
    page = opened(several)
    for tab in ("#tab-own", "#tab-classes", "#tab-layers"):
        page.click(tab)
        nameless = page.evaluate(
            """() => [...document.querySelectorAll("input, select, button, canvas[role=img]")]
            .filter(e => e.checkVisibility() && !(e.labels && e.labels.length)
                && !e.getAttribute("aria-label") && !e.textContent.trim()).map(e => e.outerHTML)"""
        )
        assert nameless == []
    assert page.evaluate("new Set([...document.querySelectorAll('[id]')].map(e => e.id)).size") == (
        page.locator("[id]").count()
    )


def test_dark_and_light(opened: Open, several: Path) -> None:
    def brightness(page: Page, colour: str) -> int:
        values = page.evaluate(f"getComputedStyle(document.body).{colour}")
        return sum(map(int, re.findall(r"\d+", values)[:3]))

    light = opened(several)
    dark = opened(several, color_scheme="dark")
    assert brightness(light, "backgroundColor") > 600 > 300 > brightness(light, "color")
    assert brightness(dark, "backgroundColor") < 150 < 600 < brightness(dark, "color")
    before = pixels(light, "#curves canvas")
    light.emulate_media(color_scheme="dark")
    wait_for_change(light, "#curves canvas", before)  # the chart follows the theme
    light.emulate_media(media="print", color_scheme="dark")
    assert brightness(light, "backgroundColor") > 600  # paper is white


@pytest.mark.parametrize("width", [320, 375, 768])
def test_a_narrow_window_does_not_scroll_sideways(
    opened: Open, several: Path, single: Path, width: int
) -> None:
    for path in (several, single):
        page = opened(path, viewport={"width": width, "height": 700})
        for tab in ("#tab-own", "#tab-classes", "#tab-layers"):
            page.click(tab)
            assert page.evaluate("document.documentElement.scrollWidth") == width
        cells = page.eval_on_selector_all(
            "td:has(.bar)", "all => all.map(td => [td.scrollWidth, td.offsetWidth])"
        )
        assert all(inside <= outside for inside, outside in cells)  # a number beside its bar
        page.set_viewport_size({"width": 1000, "height": 700})
        page.set_viewport_size({"width": width, "height": 700})
        page.wait_for_timeout(200)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert quiet(page)


def test_a_wide_window_shows_every_column(opened: Open, several: Path) -> None:
    page = opened(several, viewport={"width": 1300, "height": 900})
    tables = page.eval_on_selector_all(
        "section > div > .wide", "all => all.map(t => [t.scrollWidth, t.clientWidth])"
    )
    assert len(tables) >= 2
    assert all(inside <= outside for inside, outside in tables)


def test_it_prints_on_paper(opened: Open, several: Path) -> None:
    page = opened(several)
    page.emulate_media(media="print")
    assert page.locator("#run").is_hidden()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    assert page.pdf(format="A4").startswith(b"%PDF")
