"""The pages that show results: as committed, empty, and filled."""

import json
import shutil
from pathlib import Path

import pytest
from record_parts import record_of

from snip.common.errors import FileError, InputError
from snip.experiments import EXPERIMENTS
from snip.experiments.claims import CLAIMS
from snip.experiments.gallery.gallery_page import COMMAND
from snip.experiments.gallery.marked import END, MARK, filled
from snip.experiments.gallery.pages import GALLERY, METHODS, README, pages
from snip.experiments.methods import METHODS_HERE
from snip.methods.controls import CONTROLS

TOP = Path(__file__).parents[1]


def test_the_committed_pages_are_what_the_results_say():
    """If this fails, results came or changed: run the command and commit what it writes."""
    for path, text in pages(TOP / "results", TOP / "docs").items():
        assert path.read_text(encoding="utf-8") == text, f"run {COMMAND}"


@pytest.fixture
def docs(tmp_path):
    shutil.copytree(TOP / "docs", tmp_path / "docs")
    shutil.copy(TOP / README, tmp_path)
    (tmp_path / "results").mkdir()
    return tmp_path / "docs"


def written(docs, **records):
    results = docs.parent / "results"
    for name, record in records.items():
        (results / f"{name.replace('_', '-')}.json").write_text(json.dumps(record))
    made = pages(results, docs)
    return made[docs / GALLERY], made[docs / METHODS]


def test_without_results_everything_is_not_run_yet(docs):
    gallery, methods = written(docs)
    for name, experiment in EXPERIMENTS.items():
        assert f"| `{name}` | {experiment.title} | not run yet |" in gallery
        assert f"\n## {name}\n" not in gallery
    assert gallery.count("**not run yet**") == len(CLAIMS)
    assert methods.count("not run yet: `snip reproduce ") == 5


def test_a_section_has_command_seeds_scale_date_and_figure(docs):
    record = record_of("fig4", EXPERIMENTS["fig4"].rows()[:2])
    (docs.parent / "results" / "fig4-scale-0.5.png").write_bytes(b"")
    gallery, _ = written(docs, **{"fig4_scale_0.5": record})
    section = gallery.partition("\n## fig4-scale-0.5\n")[2]
    assert "`snip reproduce fig4 --scale 0.5` (the last one was `snip reproduce fig4`)" in section
    assert "`snip reproduce fig4 --scale 0.5 --missing` does what is not here yet" in section
    assert "Seeds 0-1; 2026-11-17." in section
    assert "](../results/fig4-scale-0.5.png)](../results/fig4-scale-0.5.svg)" in section
    assert "| reference, true labels | lenet-5-caffe | 0 | 1.05 ± 0.07 |" in section
    assert "0.02 (the paper's is 0.1)): 4 of 10 runs; 3 of 5 rows are not" in section
    assert "Not of the full schedule: fig4 at 0.5 of it." in gallery
    title = EXPERIMENTS["fig4"].title
    line = f"| [`fig4-scale-0.5`](#fig4-scale-05) | {title} | 4 of 10 | 2 | 0.5 of the full |"
    assert line in gallery


def test_runs_that_came_to_nothing_are_shown(docs):
    record = record_of("fig4", [])
    lost = {"run": "x", "seed": 0, "error": "the loss is nan", "diverged": True}
    record["rows"][0]["failed"], record["failed"] = [lost], 1
    gallery, _ = written(docs, **{"fig4_scale_0.5": record})
    assert "reference, true labels: diverged" in gallery
    assert "\n## fig4-scale-0.5\n" in gallery


def test_an_unknown_mark_is_refused(docs):
    with pytest.raises(InputError, match=r"unknown mark for results 'tabel'.*table"):
        filled("<!-- results: tabel -->", {}, docs)


def test_a_damaged_result_is_refused_by_name(docs):
    with pytest.raises(FileError, match=r"fig1\.json is of experiment fig3"):
        written(docs, fig1=record_of("fig3", []))


def test_marks_are_filled_and_filled_again(docs):
    record = record_of("methods", EXPERIMENTS["methods"].rows())
    (docs.parent / "results" / "methods.png").write_bytes(b"")
    rows = EXPERIMENTS["granularity"].rows()
    _, first = written(docs, methods=record, granularity=record_of("granularity", rows))
    assert first.count(END) == len(MARK.findall(first))
    assert "| lenet-300-100 | 90% | 95% | 98% | 99% | 99.5% |" in first
    assert "| `snip` | 1.05 ± 0.07 |" in first
    assert f"| lenet-300-100 at 98% | the method | {' | '.join(CONTROLS)} |" in first
    controls = first.partition("<!-- results: controls -->")[2]
    assert all(f"| `{name}` |" in controls for name in METHODS_HERE)
    assert "[![Ten methods at initialisation, MNIST](../results/methods.png)]" in first
    assert "| channel 90% |" in first
    (docs / METHODS).write_text(first)
    assert written(docs)[1] == first
    claims = (docs.parent / README).read_text().partition("<!-- results: claims -->")[2]
    assert claims.count("](docs/gallery.md#") >= len(CLAIMS)
    bare = "before\n<!-- results: figure -->\nafter\n"
    text = filled(bare, {}, docs.parent / "results")
    assert text.startswith("before\n<!-- results: figure -->\nThe figure")
    assert text.endswith(f"{END}\nafter\n")
