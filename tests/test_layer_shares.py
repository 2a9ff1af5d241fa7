"""`snip reproduce layers`: what SNIP keeps of each layer, on real data, beside the paper."""

import pytest

from snip.data import load
from snip.experiments import EXPERIMENTS
from snip.experiments.architectures import TABLE2, TABLEC
from snip.experiments.drawing import save_figure
from snip.experiments.layer_shares import PAPER, measure, measured_table
from snip.experiments.record import Known, make_record
from snip.experiments.tables import captions
from snip.runs import RunConfig, prepare
from snip.selection.budgets import kept_count


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Where only MNIST is, which is inside the package, the recurrent networks are scored."""
    empty = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(empty)
        patch.setenv("HOME", str(empty))
        patch.delenv("SNIP_DATA", raising=False)
        return measure(empty, 1.0)


def test_the_counts_are_those_of_the_masks(measured):
    found = {one["model"]: one for one in measured["networks"]}
    assert list(found) == ["lstm-s", "lstm-b", "gru-s", "gru-b"]
    _, masks = prepare(RunConfig("gru-s", 0.95, protocol="redraw"), load("mnist"))
    kept = {name: [int(mask.sum()), mask.numel()] for name, mask in masks.items()}
    ours = found["gru-s"]
    assert ours["weights"] | ours["biases"] == kept
    assert all("bias" in name for name in ours["biases"])
    assert sum(kept for kept, _ in ours["biases"].values()) == 0
    for one in found.values():
        counted = sum(kept for kept, _ in one["weights"].values())
        assert counted == one["kept"] == kept_count(one["total"], 0.95)


def test_the_table_has_the_papers_counts_and_names_the_ends(measured):
    heading, rows = measured_table(measured)
    cells = dict(zip(heading, rows[0], strict=True))
    assert (cells["network"], cells["kept"], cells["paper kept"]) == ("lstm-s", "6,829", "6.8k")
    assert cells["biases kept"] == "0"
    shares = {
        name: kept / total for name, (kept, total) in measured["networks"][0]["weights"].items()
    }
    assert cells["densest weight"].startswith(max(shares, key=shares.__getitem__))
    assert cells["sparsest weight"].startswith(min(shares, key=shares.__getitem__))


def test_every_pruned_network_of_both_tables_has_the_papers_count():
    pruned = [row.config for one in (TABLE2, TABLEC) for row in one.rows() if row.config.sparsity]
    assert {(config.model, config.sparsity) for config in pruned} == PAPER.keys()


def test_the_figure_has_a_panel_per_network(measured, tmp_path):
    experiment = EXPERIMENTS["layers"]
    notes = ["half of the images"]
    more = {"measured": measured | {"data_notes": notes}}
    record = make_record(experiment, [], Known(), scale=1, command="snip", more=more)
    assert "Data: half of the images." in captions(record)
    figure = experiment.draw(record)
    titles = [axes.get_title(loc="left") for axes in figure.axes if axes.get_visible()]
    assert titles == ["lstm-s, mnist", "lstm-b, mnist", "gru-s, mnist", "gru-b, mnist"]
    save_figure(figure, tmp_path / "layers")
    none = make_record(experiment, [], Known(), scale=1, command="snip",
                       more={"measured": {"networks": [], "seeds": 1}})  # fmt: skip
    assert experiment.draw(none)
