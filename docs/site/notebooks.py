"""A hook of mkdocs: notebooks are run while the site is built, and shown with what they printed.

They are committed without outputs. So no output can be older than the code, and a notebook that
fails is a site that is not built.
"""

from __future__ import annotations

import re
import tempfile
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from nbclient import NotebookClient
from traitlets.config import Config

NOTEBOOK = re.compile(r"\]\(([\w./-]+)\.ipynb\)")
PATIENCE = 600  # seconds to begin and for each cell: the machine may be busy


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Beside each notebook, which can be fetched from the site, a page that shows it."""
    for file in list(files):
        if file.src_uri.endswith(".ipynb"):
            source = Path(file.abs_src_path)
            text = page(source.read_text(encoding="utf-8"), source.name)
            shown = f"{file.src_uri.removesuffix('.ipynb')}.md"
            files.append(File.generated(config, shown, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A link to a notebook, which the repository shows by itself, leads to its page on the site."""
    return NOTEBOOK.sub(r"](\1.md)", markdown)


@cache  # while the site is served, a notebook runs again only if it changed
def page(text: str, name: str) -> str:
    """A notebook as Markdown, with the outputs of a run that is made now."""
    cells = [part for cell in executed(text).cells for part in _shown(cell)]
    # As HTML: links in Markdown that lead to notebooks are turned to their pages below.
    return "\n\n".join([*cells, f'<a href="{name}" download>This page as a notebook</a>'])


def executed(text: str) -> nbformat.NotebookNode:
    """The notebook after all its cells ran, in an empty folder; an error in one is raised."""
    notebook = nbformat.reads(text, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        # The kernel is spoken to through files in the folder: no port is opened.
        private = Config({"KernelManager": {"transport": "ipc", "ip": f"{folder}/kernel"}})
        NotebookClient(
            notebook,
            timeout=PATIENCE,
            startup_timeout=PATIENCE,
            resources={"metadata": {"path": folder}},
            config=private,
        ).execute()
    return notebook


def _shown(cell: Any) -> list[str]:
    if cell.cell_type == "markdown":
        return [cell.source]
    return [f"```python\n{cell.source}\n```", *map(_output, cell.outputs)]


def _output(output: Any) -> str:
    """What a cell printed, drew or returned."""
    if output.output_type == "stream":
        return _printed(output.text)
    if "image/png" in output.data:
        data = output.data["image/png"].replace("\n", "")
        return f'<img alt="What the code above draws." src="data:image/png;base64,{data}">'
    return _printed(output.data["text/plain"])


def _printed(text: str) -> str:
    # Not a fenced block: the text may have fences, and it is nothing to run.
    return f"<pre><code>{escape(text.rstrip())}</code></pre>"
