"""A hook of mkdocs: the site has the tree of the repository, so that one link works in both.

The README is the front page, and docs/ and results/ keep their places beside it.
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
SHOWN = (".md", ".svg", ".png")  # of results/: what people read
MADE = "not-supported.md"  # at the root, where the links of the README's section hold


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Exchange what was found in docs/ for the same at its place in the repository."""
    for file in list(files):
        if file.src_dir == config.docs_dir:
            files.remove(file)
            files.append(_at(f"docs/{file.src_uri}", config))
    for path in sorted((ROOT / "results").iterdir()):
        if path.suffix in SHOWN:
            files.append(_at(f"results/{path.name}", config))
    for name in PAGES:
        files.append(_at(name, config))
    text = section((ROOT / "README.md").read_text(encoding="utf-8"), "Not supported")
    files.append(File.generated(config, MADE, content=f"# What is not supported\n\n{text}"))
    return files


def section(text: str, heading: str) -> str:
    """What stands under a heading of the second level, up to the next one."""
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    if found is None:
        raise ValueError(f"the README has no section {heading!r}, which the site shows.")
    return found[1]


def _at(place: str, config: MkDocsConfig) -> File:
    return File(place, str(ROOT), config.site_dir, config.use_directory_urls)
