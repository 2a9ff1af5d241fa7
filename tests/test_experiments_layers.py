"""`snip reproduce layers`: what SNIP keeps of each layer, on real data, beside the paper."""

import dataclasses

import pytest
from expected_warnings import expects

from snip.common.files import write_json
from snip.data import load
from snip.experiments import EXPERIMENTS
from snip.experiments.layers import measured, measured_table
from snip.experiments.records.captions import captions
from snip.experiments.records.drawing import save_figure
from snip.experiments.records.record import Known, make_record
from snip.experiments.sweep.reproduce import Reproduction
from snip.experiments.sweep.request import Request
from snip.experiments.sweep.work import Place
from snip.experiments.table2 import PRUNED, TABLE2
from snip.runs import RunConfig, prepare
from snip.selection.budgets import kept_count

ROWS = {row.config.model: row for row in TABLE2.rows() if row.label == PRUNED}
RECURRENT = ("lstm-s", "gru-s")
pytestmark = expects("losses")


@pytest.fixture(scope="module")
def found():
    """What two small networks keep, which real MNIST is enough for."""
    mnist = load("mnist")
    return {"networks": [measured(ROWS[name], mnist) for name in RECURRENT], "seeds": 1}


def test_the_counts_are_those_of_the_masks(found):
    _, masks = prepare(RunConfig("gru-s", 0.95, protocol="redraw"), load("mnist"))
    kept = {name: [int(mask.sum()), mask.numel()] for name, mask in masks.items()}
    ours = found["networks"][1]
    assert ours["weights"] | ours["biases"] == kept
    assert all("bias" in name for name in ours["biases"])
    assert sum(kept for kept, _ in ours["biases"].values()) == 0
    for one in found["networks"]:
        counted = sum(kept for kept, _ in one["weights"].values())
        assert counted == one["kept"] == kept_count(one["total"], 0.95)


def test_without_all_data_nothing_is_measured_and_what_was_stays(tmp_path, found, capsys):
    experiment, results = EXPERIMENTS["layers"], tmp_path / "results"
    request = Request(Place(tmp_path / "runs", data_dir=tmp_path), results, command="snip")
    write_json(results / "layers.json", make_record(
        experiment, [], Known(), scale=1, command="snip", more={"measured": found},
    ))  # fmt: skip
    work = Reproduction(experiment, request)
    assert work.run()["measured"] == found
    (failure,) = work.failures
    assert "cifar-10" in failure
    # Asked for what is missing alone, it does not ask for the data.
    work = Reproduction(experiment, dataclasses.replace(request, missing=True))
    assert work.run()["measured"] == found
    assert work.failures == []


def test_the_table_has_the_papers_counts_and_names_the_ends(found):
    heading, rows = measured_table(found)
    cells = dict(zip(heading, rows[0], strict=True))
    assert (cells["network"], cells["kept"], cells["paper kept"]) == ("lstm-s", "6,829", "6.8k")
    assert cells["biases kept"] == "0"
    weights = found["networks"][0]["weights"]
    shares = {name: kept / total for name, (kept, total) in weights.items()}
    assert cells["densest weight"].startswith(max(shares, key=shares.__getitem__))
    assert cells["sparsest weight"].startswith(min(shares, key=shares.__getitem__))


@pytest.mark.parametrize(
    ("kept", "said"), [(996, "fc.weight 99.6%"), (1, "fc.weight 0.1%"), (0, "fc.weight 0%")]
)
def test_shares_are_written_in_full(found, kept, said):
    one = found["networks"][0] | {"weights": {"fc.weight": [kept, 1000]}}
    heading, rows = measured_table({"networks": [one]})
    assert dict(zip(heading, rows[0], strict=True))["densest weight"] == said


def test_the_figure_has_a_panel_per_network(found, tmp_path):
    experiment = EXPERIMENTS["layers"]
    more = {"measured": found | {"data_notes": ["mnist: half of the images"]}}
    record = make_record(experiment, [], Known(), scale=1, command="snip", more=more)
    assert "Data: mnist: half of the images." in captions(record)
    figure = experiment.draw(record)
    titles = [axes.get_title(loc="left") for axes in figure.axes if axes.get_visible()]
    assert titles == ["lstm-s, mnist, 95%", "gru-s, mnist, 95%"]
    save_figure(figure, tmp_path / "layers")
