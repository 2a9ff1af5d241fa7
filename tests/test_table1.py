"""What the table of the rivals says of them beside their errors."""

import csv
import json
from pathlib import Path

import torch

import snip
from snip.experiments.records.tables import table_files, table_of
from snip.experiments.table1 import TABLE1
from snip.methods.course import own_count
from snip.training import TrainConfig

RESULTS = Path(__file__).parent.parent / "results"


def test_the_note_of_a_method_tells_what_its_own_rule_kept():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.ReLU(), torch.nn.Linear(12, 3))
    data = [(torch.randn(9, 6), torch.arange(9) % 3)]
    training = TrainConfig(lr=0.02, iterations=4, lr_drops=())
    masks = snip.prune(model, data, sparsity=0.5, method="sws", training=training)
    note = masks.provenance.note
    assert note.endswith(f" connections that the method kept to {masks.kept}")
    assert own_count(note) == int(note.split()[note.split().index("the") + 1])
    assert own_count(None) is own_count("something else") is None


def test_the_table_counts_biases_and_what_a_rule_keeps_by_itself():
    record = json.loads((RESULTS / "table1.json").read_text(encoding="utf-8"))
    heading, rows = table_of(TABLE1, record)
    columns = ("of all %", "kept", "kept by its own rule")
    of_all, kept, by_rule = (heading.index(name) for name in columns)
    found = {(row[0], row[1]): row for row in rows}
    # 1,722 of 430,500 weights are left, and all of 580 biases: 2,302 of 431,080.
    assert found["SVD", "lenet-5-caffe"][of_all] == "99.47"
    assert found["SVD", "lenet-5-caffe"][kept] == "1,722"
    assert found["SVD", "lenet-5-caffe"][by_rule] == "4,624"
    assert found["LWC", "lenet-300-100"][by_rule] == "-"  # which keeps what it is asked for
    text = table_files(TABLE1, record)["csv"]
    (svd,) = (
        row
        for row in csv.DictReader(text.splitlines())
        if row["label"] == "SVD" and row["model"] == "lenet-5-caffe"
    )
    assert (svd["kept"], svd["kept by its own rule"], svd["missing"]) == ("1722", "4624", "")
