"""The page in a real browser: hostile names are text, and nothing foreign is run or loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser_fixtures import Open, quiet
from page_parts import HOSTILE, hostile_run, made, small_run

OWN = """
from torch import nn

def build(classes):
    model = nn.Sequential(nn.Flatten())
    model.add_module("<img src=x onerror=window_hacked=1>", nn.Linear(784, 8))
    model.add_module("last", nn.Linear(8, classes))
    return model
"""


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
