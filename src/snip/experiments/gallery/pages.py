"""Which pages and tables show results, and what should stand in each.

They are written at the top of the repository after new results came. A test compares all of them
with what is committed.
"""

from __future__ import annotations

from pathlib import Path

from snip.common.files import reading
from snip.experiments import EXPERIMENTS
from snip.experiments.gallery.gallery_page import gallery
from snip.experiments.gallery.marked import filled
from snip.experiments.gallery.verdicts import Found, judged
from snip.experiments.records.parts import has_something
from snip.experiments.records.results_file import read_record
from snip.experiments.records.tables import table_files

DOCS, RESULTS = Path("docs"), Path("results")
GALLERY, METHODS, REPRODUCED = "gallery.md", "methods.md", "reproduced.md"


def pages(results: Path, docs: Path) -> dict[Path, str]:
    """Every page and table that shows results, as it should be."""
    found = read_all(results)
    largest = {name: shown[0][1] for name, shown in found.items() if shown}
    made = {
        results / f"{stem}.{ending}": text
        for name, shown in found.items()
        for stem, record in shown
        for ending, text in table_files(EXPERIMENTS[name], record).items()
    }
    claims = judged(found, results)
    made[docs / GALLERY] = gallery(found, claims, results)
    for path in (docs / METHODS, docs / REPRODUCED):
        with reading(path, what="page"):
            before = path.read_text(encoding="utf-8")
        made[path] = filled(before, largest, claims, results)
    return made


def read_all(results: Path) -> dict[str, Found]:
    """The records of every experiment with something in them, the largest scale first."""
    found: dict[str, Found] = {}
    for name in EXPERIMENTS:
        paths = [results / f"{name}.json", *results.glob(f"{name}-scale-*.json")]
        records = [(path.stem, read_record(path, EXPERIMENTS[name])) for path in paths]
        some = [(stem, one) for stem, one in records if has_something(one)]
        found[name] = sorted(some, key=lambda pair: -pair[1]["scale"])
    return found
