"""A hook of mkdocs: the site has the tree of the repository, so that one link works in both.

The README is the front page, and docs/ and results/ keep their places beside it.
"""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
SHOWN = (".md", ".svg", ".png")  # of results/: what people read


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
    return files


def _at(place: str, config: MkDocsConfig) -> File:
    return File(place, str(ROOT), config.site_dir, config.use_directory_urls)
