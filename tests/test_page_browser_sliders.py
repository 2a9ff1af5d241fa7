"""The page in a real browser: sliders, tabs, keys and choices change what is drawn."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser_fixtures import Open, pixels, quiet, wait_for_change


def test_class_and_sparsity_sliders_change_the_picture(opened: Open, single: Path) -> None:
    page = opened(single)
    page.click("#tab-classes")
    seen = {}
    for label in (0, 3, 9):
        for at in (0, 4, 8):
            page.fill("#class", str(label))
            page.fill("#class-sparsity", str(at))
            seen[label, at] = pixels(page, "#class-picture")
            assert f"Class {label}, {10 * (at + 1)}% sparse" in page.inner_text("#class-caption")
    assert len(set(seen.values())) == 9
    page.click("#class-strip button >> nth=5")
    assert page.input_value("#class") == "5"
    assert quiet(page)


def test_the_layers_move_with_the_sparsity(opened: Open, several: Path) -> None:
    page = opened(several)
    page.select_option("#run", index=1)
    page.click("#tab-layers")
    assert page.locator("#tab-classes").is_hidden()  # its first layer does not see whole images
    kept = []
    for at in ("0", "10", "20"):
        page.fill("#layer-sparsity", at)
        rows = page.locator("#layer-rows tr").all_inner_texts()
        kept.append([int(row.split("\t")[1].replace(",", "")) for row in rows])
        widths = page.eval_on_selector_all(
            "#layer-rows rect", "all => all.map(rect => Number(rect.getAttribute('width')))"
        )
        assert widths == pytest.approx(
            [100 * k / t for k, t in zip(kept[-1], (500, 25_000, 400_000, 5_000), strict=True)]
        )
    assert sum(kept[0]) > sum(kept[1]) > sum(kept[2]) > 0
    assert quiet(page)


def test_the_slider_at_the_run_s_sparsity_is_the_run(opened: Open, several: Path) -> None:
    page = opened(several)
    page.select_option("#run", index=1)
    page.click("#tab-layers")
    assert page.inner_text("#layer-sparsity-value") == "98%"
    shown = [row.split("\t")[1] for row in page.locator("#layer-rows tr").all_inner_texts()]
    table = page.locator("[data-run=run-1] tbody tr").all_inner_texts()
    weights = [row.split("\t") for row in table if ".weight" in row]
    assert shown == [row[2] for row in weights]


def test_keys_move_sliders_and_tabs(opened: Open, single: Path) -> None:
    page = opened(single)
    page.focus("#tab-own")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "tab-classes"
    assert page.get_attribute("#tab-classes", "aria-selected") == "true"
    assert page.is_visible("#panel-classes")
    page.keyboard.press("End")
    assert page.is_visible("#panel-layers")
    page.keyboard.press("ArrowRight")  # around
    assert page.is_visible("#panel-own")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "class"
    before = pixels(page, "#class-picture")
    page.keyboard.press("ArrowRight")
    assert page.input_value("#class") == "1"
    assert page.get_attribute("#class", "aria-valuetext") == "1"
    assert pixels(page, "#class-picture") != before
    page.keyboard.press("Tab")
    page.keyboard.press("Home")
    assert page.inner_text("#class-sparsity-value") == "10%"


def test_curves_by_measure_scale_and_run(opened: Open, several: Path) -> None:
    page = opened(several)

    def drawn() -> str:
        return pixels(page, "#curves canvas")

    def last_values(measure: str) -> list[str]:
        runs = page.evaluate("snip.data.curves")
        return [f"{run['series'][measure][-1]:.3g}" for run in runs]

    shown = page.locator("#curve-runs .value")
    assert shown.all_inner_texts() == last_values("test_error")
    errors = drawn()
    page.select_option("#measure", "train_loss")
    assert shown.all_inner_texts() == last_values("train_loss") != last_values("test_error")
    assert drawn() != errors
    logarithmic = drawn()
    page.check("input[value=linear]")
    linear = drawn()
    assert linear != logarithmic
    page.uncheck("#curve-runs li:nth-child(2) input")
    wait_for_change(page, "#curves canvas", linear)
    assert quiet(page)
