"""The page in a real browser: it loads in silence, its sliders work, hostile names are text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest
from browser_fixtures import Open
from page_parts import HOSTILE, hostile_run, small_run
from playwright.sync_api import Page

from snip.cli import main
from snip.cli.repeating import command_of
from snip.data import load
from snip.page.book import Book
from snip.page.server import PageServer

OWN = """
from torch import nn

def build(classes):
    model = nn.Sequential(nn.Flatten())
    model.add_module("<img src=x onerror=window_hacked=1>", nn.Linear(784, 8))
    model.add_module("last", nn.Linear(8, classes))
    return model
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    small_run(folder / "a")
    small_run(folder / "b", "lenet-5-caffe", 0.98, every=40)
    small_run(folder / "c", sparsity=0)
    return folder


@pytest.fixture(scope="module")
def several(runs: Path) -> Path:
    return made(runs.parent / "several.html", runs)


@pytest.fixture(scope="module")
def single(runs: Path) -> Path:
    return made(runs.parent / "single.html", runs / "a")


def made(path: Path, *runs: object) -> Path:
    assert main(["report", *map(str, runs), "-o", str(path)]) == 0
    return path


def pixels(page: Page, canvas: str) -> str:
    return page.eval_on_selector(canvas, "canvas => canvas.toDataURL()")


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


def quiet(page: Page) -> bool:
    """No complaint, and no request but for the page itself."""
    assert page.complaints == []
    return len(page.requests) == 1


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


def test_curves_by_measure_scale_and_run(opened: Open, several: Path) -> None:
    page = opened(several)
    errors = page.evaluate("snip.chartPoints()")
    assert errors[0] == [10, 20, 30, 40]
    assert len(errors) == 4
    page.select_option("#measure", "train_loss")
    losses = page.evaluate("snip.chartPoints()")
    assert losses[0] == errors[0]
    assert losses[1] != errors[1]

    def drawn() -> str:
        return pixels(page, "#curves canvas")

    logarithmic = drawn()
    page.check("input[value=linear]")
    linear = drawn()
    assert linear != logarithmic
    page.uncheck("#curve-runs li:nth-child(2) input")
    page.wait_for_timeout(100)
    assert drawn() != linear
    assert quiet(page)


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
    light.wait_for_timeout(200)
    assert pixels(light, "#curves canvas") != before  # the chart follows the theme
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


def test_hostile_names_are_text(opened: Open, runs: Path, tmp_path: Path) -> None:
    folder = hostile_run(tmp_path / "<img src=x onerror=window.hacked=1>", runs / "a")
    for given in ([folder], [folder, runs / "a"]):
        page = opened(made(tmp_path / "evil.html", *given))
        page.wait_for_timeout(300)
        assert page.evaluate("window.hacked") is None
        assert quiet(page)
        text = page.inner_text("main")
        for name in HOSTILE:
            assert name.replace("\u202e\x1b", "\\u202e\\x1b") in text
        assert "\u202e" not in page.content()
        assert page.locator("main img, main svg[onload]").count() == 0
        assert page.locator("h1").is_visible()
        assert page.title().endswith("Snip report")


def test_hostile_layer_names_in_the_explorer(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hostile_net.py").write_text(OWN)
    small_run(Path("run"), "hostile_net:build", 0.5)
    page = opened(made(tmp_path / "own.html", "run", "--own-networks"))
    page.click("#tab-layers")
    assert "<img src=x onerror=window_hacked=1>.weight" in page.inner_text("#layer-rows")
    assert page.locator("main img").count() == 0
    assert quiet(page)
    page = opened(made(tmp_path / "own.html", "run"))
    assert "--own-networks lets it be imported" in page.inner_text("#no-sliders")
    assert page.locator("#tab-layers").is_hidden()


def test_the_policy_refuses_what_is_not_the_page_s_own(opened: Open, single: Path) -> None:
    page = opened(single)
    page.evaluate(
        """() => {
            for (const html of ["<img src='http://127.0.0.1:9/'>", "<p style='color:red' id=red>"])
                document.body.insertAdjacentHTML("beforeend", html);
            const script = document.createElement("script");
            script.textContent = "window.hacked = 1";
            document.body.append(script);
        }"""
    )
    page.wait_for_timeout(200)
    assert page.evaluate("window.hacked") is None
    assert (
        page.evaluate("getComputedStyle(document.getElementById('red')).color") != "rgb(255, 0, 0)"
    )
    assert len(page.complaints) >= 3
    assert all("Content Security Policy" in complaint for complaint in page.complaints)


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


def test_it_prints_on_paper(opened: Open, several: Path) -> None:
    page = opened(several)
    page.emulate_media(media="print")
    assert page.locator("#run").is_hidden()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    assert page.pdf(format="A4").startswith(b"%PDF")
