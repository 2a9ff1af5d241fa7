"""The benchmark of the defaults: what a cell of its table says, and that it can go on."""

import defaults
import torch
from networks import chain
from torch import nn
from zoo_networks import Network


def layers():
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 10))


SMALL = Network("small", layers, lambda: (torch.randn(20, 3, 2, 2), torch.arange(20) % 10))


def test_a_row_says_what_is_left():
    healthy = defaults.row(SMALL, 0.5, {}, None)
    assert (healthy["connected"], healthy["layers"], healthy["empty"]) == (True, 2, 0)
    assert defaults.cell(healthy).endswith("%")
    drawn = defaults.row(SMALL, 0.5, {}, "vs")
    assert drawn["biases"] == [0, 30]  # drawn by "vs", they are zero


def test_the_default_keeps_a_path_where_the_authors_way_keeps_none():
    network = Network("chain", lambda: chain()[0], lambda: chain()[1])
    cells = [
        defaults.cell(defaults.row(network, 0.99, settings, None))
        for settings in defaults.SETTINGS.values()
    ]
    assert cells[0].startswith("no path")
    assert "no path" not in cells[-1]


def test_an_interrupted_table_goes_on(tmp_path):
    journal, done = tmp_path / "rows.jsonl", []

    def work():
        done.append(1)
        return {"refused": "why"}

    first = defaults.remembered(journal, "a", work)
    assert defaults.remembered(journal, "a", work) == first
    assert defaults.cell(first) == "refused"
    assert len(done) == 1
