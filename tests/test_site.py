"""The documentation site: it is built without a warning, is whole, and asks nobody for anything."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from browser_fixtures import Open
from mkdocs.commands.build import build as build_site
from mkdocs.config import load_config
from mkdocs.exceptions import Abort
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_notebook

import snip

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
LOADED = re.compile(
    r"""<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=["']?((?:https?:)?//[^"' >]+)"""
)


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    return subprocess.run(
        [*command, "--site-dir", str(folder)],
        capture_output=True, text=True, check=False, cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip


def test_the_site(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    # One test, since it is built once: the three notebooks run meanwhile.
    done = build(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    check_the_notebooks_ran(tmp_path)
    check_the_reference_is_whole((tmp_path / "docs/api.html").read_text())
    assert "What runs sparse" in (tmp_path / "docs/limits.html").read_text()
    pages = {path: path.read_text() for path in tmp_path.rglob("*.html")}
    assert {str(path): LOADED.findall(text) for path, text in pages.items()} == {
        str(path): [] for path in pages
    }
    # Last, as it is skipped where there is no browser.
    check_a_browser_fetches_nothing(tmp_path, request.getfixturevalue("opened"))


def check_the_notebooks_ran(folder: Path) -> None:
    for path in NOTEBOOKS:
        assert (folder / "docs/notebooks" / path.name).exists()  # to be fetched
    shown = {
        path.stem: (folder / f"docs/notebooks/{path.stem}.html").read_text() for path in NOTEBOOKS
    }
    assert re.search(r"dense \d+\.\d+% wrong, pruned \d+\.\d+% wrong", shown["start"])
    assert shown["what-survives"].count("data:image/png") == 2
    assert "read back from the maps: 0 1 2 3 4 5 6 7 8 9" in shown["what-survives"]
    assert re.search(r"lamp +\d+\.\d+% wrong, kept per layer", shown["own-method"])


def check_the_reference_is_whole(text: str) -> None:
    missing = [name for name in snip.__all__ if f'id="snip.{name}"' not in text]
    assert missing == []


def check_a_browser_fetches_nothing(folder: Path, opened: Open) -> None:
    page = opened(folder / "docs/paper.html", offline=True)
    assert page.locator("h1").inner_text().startswith("The paper explained")
    assert page.evaluate("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
    assert [
        address for address in page.requests if not address.startswith(("file:", "data:"))
    ] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_committed_without_outputs(path: Path) -> None:
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert cells
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A repository with the real settings and hooks, and pages of one line each."""
    (tmp_path / "docs/notebooks").mkdir(parents=True)
    (tmp_path / "src/snip").mkdir(parents=True)
    (tmp_path / "results").mkdir()
    shutil.copytree(ROOT / "docs/site", tmp_path / "docs/site")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    pages = re.findall(r": ((?:docs/|[A-Z]+\.md)\S*)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    for name in (*pages, "results/fig2.md"):
        (tmp_path / name).write_text(f"# {name}\n")
    (tmp_path / "README.md").write_text("# Small\n[zoo](docs/zoo.md) [2](results/fig2.md)\n")
    return tmp_path


def warned(root: Path, caplog: pytest.LogCaptureFixture) -> str:
    """What mkdocs complains of in strict mode; nothing if the site is built."""
    config = load_config(str(root / "mkdocs.yml"), site_dir=str(root / "site"))
    try:
        build_site(config)
    except Abort:
        return caplog.text
    return ""


def test_a_small_site_is_built(small: Path, caplog) -> None:
    assert warned(small, caplog) == ""
    assert "The zoo" in (small / "site/index.html").read_text()


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("README.md", "[x](docs/gone.md)\n", "docs/gone.md"),
        ("README.md", "[x](docs/zoo.md#gone)\n", "#gone"),
        ("docs/zoo.md", "[x](../README.md#gone)", "#gone"),
        ("docs/zoo.md", "![x](../results/gone.svg)", "gone.svg"),
        ("docs/forgotten.md", "not in the navigation", "docs/forgotten.md"),
        ("docs/api.md", "::: snip.gone", "snip.gone"),
    ],
)
def test_what_leads_nowhere_is_an_error(small: Path, caplog, name, text, complaint) -> None:
    (small / name).write_text(text)
    assert complaint in warned(small, caplog)


def test_a_page_that_is_gone_is_an_error(small: Path, caplog) -> None:
    (small / "docs/gallery.md").unlink()
    assert "docs/gallery.md" in warned(small, caplog)


def test_a_notebook_that_fails_is_an_error(small: Path, caplog) -> None:
    book = new_notebook(cells=[new_code_cell("assert 1 == 2, 'here'")])
    (small / "docs/notebooks/start.md").unlink()
    (small / "docs/notebooks/start.ipynb").write_text(nbformat.writes(book))
    with pytest.raises(CellExecutionError, match="here"):
        warned(small, caplog)
