"""The comparison of methods at initialisation: what it notes of each run, and how it is drawn."""

from dataclasses import replace

import pytest
from expected_warnings import expects
from record_parts import record_with

from snip.common.errors import FileError
from snip.data import load
from snip.experiments.methods import CROSSES, CUT_OFF, METHODS_EXPERIMENT, SPARSITIES, keep
from snip.runs import RunConfig, run
from snip.training import TrainConfig

TRAIN = TrainConfig(iterations=2, lr_drops=())
pytestmark = expects("losses")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A network that keeps all its classes, and one that loses them."""
    load("mnist")
    root = tmp_path_factory.mktemp("runs")
    configs = [RunConfig("lenet-300-100", sparsity, train=TRAIN) for sparsity in (0.9, 0.9999)]
    return [run(config, root, progress=False) for config in configs]


def test_a_run_notes_how_many_classes_its_masks_cut_off(results):
    whole, cut = (keep(result, None)[CUT_OFF] for result in results)
    assert whole == 0
    assert 0 < cut <= 10


@pytest.mark.parametrize("text", ["{}", '{"dead_outputs": null}', "[", '{"dead_outputs": 3}'])
def test_a_damaged_report_is_a_sentence(results, text, tmp_path):
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(FileError, match=r"report.json is damaged .* delete its folder"):
        keep(replace(results[0], folder=tmp_path), None)


def test_cut_off_classes_are_told_seed_by_seed_and_not_of_older_runs():
    ((heading, cell),) = METHODS_EXPERIMENT.columns
    assert heading == "classes cut off, by seed"
    assert cell({"runs": [{CUT_OFF: 0}, {CUT_OFF: 2}]}, {}) == "0, 2"
    assert cell({"runs": [{CUT_OFF: 0}, {}]}, {}) == "-"


def test_bars_reach_from_the_lowest_to_the_highest_seed():
    """A deviation larger than the mean would leave a logarithmic axis."""
    rows = [
        {
            "label": "snip",
            "config": {
                "model": "lenet-5-caffe",
                "dataset": "mnist",
                "sparsity": sparsity,
                "train": {"iterations": 5_400},
            },
            "runs": [{"test_error": 0.01}, {"test_error": 0.21}],
            "selected": {"mean": 11.0, "std": 14.1},
        }
        for sparsity in SPARSITIES
    ]
    record = {"rows": rows, "scale": 1, "done": 10, "asked": 10, "title": "t", "failed": 0}
    figure = METHODS_EXPERIMENT.draw(record)
    bars = figure.axes[0].containers[0].lines[2][0].get_segments()
    assert [[float(y) for _, y in bar] for bar in bars] == [pytest.approx([1, 21])] * 5


def test_a_method_of_which_seeds_diverged_has_a_cross():
    record = record_with("methods", lambda _: [0.01, 0.011])
    row = next(r for r in record["rows"] if r["label"] == "grasp")
    row["failed"] = [{"run": "x", "seed": 2, "error": "the loss is nan", "diverged": True}]
    row_of_control = next(r for r in record["rows"] if r["label"] == "erk, invert")
    row_of_control["failed"] = row["failed"]
    figure = METHODS_EXPERIMENT.draw(record)
    curves, _, controls = figure.axes
    (said,) = (text for text in curves.texts if "\u00d7" in text.get_text())
    assert (said.get_text(), said.xy) == ("\u00d7 grasp", (pytest.approx(10), 100))
    assert sum(line.get_marker() == "x" for line in controls.lines) == 1
    assert CROSSES in figure.get_supxlabel().replace("\n", " ")
    for one in (row, row_of_control):
        one["failed"] = []
    assert "Crosses" not in METHODS_EXPERIMENT.draw(record).get_supxlabel()
