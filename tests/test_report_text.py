"""Every form in which a report is shown: text of any width, rich, JSON and HTML."""

import io
import json
from html.parser import HTMLParser

import pytest
import torch
from report_parts import applied, mlp, mlp_masks
from rich.console import Console
from torch import nn

import snip
from snip.masks import Provenance
from snip.reports.text import as_text, percent, short


def test_repr_is_short_and_print_is_the_table():
    report = snip.report(applied(), inputs=torch.zeros(1, 2))
    assert repr(report) == (
        "Report(Sequential: 52.94% sparse, 8 of 17 kept; 39.13% of the whole model; "
        "48.28% of the FLOPs)"
    )
    collapsed = snip.report(mlp(), mlp_masks())
    assert repr(collapsed).endswith("39.13% of the whole model; 1 warning)")
    assert str(report).startswith("parameter")


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_text_fits_any_width(width):
    model = applied()
    text = as_text(snip.report(model, inputs=torch.zeros(1, 2)), width=width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert any(line.startswith("parameter") for line in lines)
    assert ("shape" in text) == (width >= 100)
    assert "Effective sparsity 76.47%" in " ".join(lines)


def test_rich_prints_it_and_brackets_are_no_markup():
    model = nn.ModuleDict({"[red]": nn.Linear(2, 2)})
    masks = snip.Masks({"[red].weight": torch.eye(2).bool()})
    masks.apply(model)
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(snip.report(model))
    assert "[red].weight" in console.export_text()


def test_dict_is_json_and_complete():
    report = snip.report(applied(), inputs=torch.zeros(1, 2))
    read = json.loads(json.dumps(report.to_dict()))
    assert read["kept"] == 8
    assert read["rows"][0]["shape"] == [3, 2]
    assert read["rows"][0]["density"] == 0.5
    assert read["effective_sparsity"] == report.effective_sparsity
    assert read["left_out"]["1.bias"] == "normalisation layer"


class Checker(HTMLParser):
    """Balanced tags, and every text that is shown."""

    def __init__(self):
        super().__init__()
        self.open, self.text = [], []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_html_is_whole_escaped_and_self_contained():
    model = nn.ModuleDict({"<b>": nn.Linear(2, 2)})
    evil = Provenance(left_out={"<b>.bias": "<script>"})
    masks = snip.Masks({"<b>.weight": torch.eye(2).bool()}, evil)
    masks.apply(model)
    html = snip.report(model)._repr_html_()
    checker = Checker()
    checker.feed(html)
    assert checker.open == []
    assert "<b>.weight" in checker.text
    assert "<script>" not in html
    assert "http" not in html
    assert '<rect width="50.00"' in html
    assert "style=" not in html  # a strict Content-Security-Policy would refuse it


def test_numbers_are_short_but_never_lie():
    assert [percent(x) for x in (0, 0.5, 1, 0.99996, 0.00001)] == [
        "0.00%",
        "50.00%",
        "100.00%",
        "99.996%",
        "0.001%",
    ]
    assert [short(x) for x in (0, 12, 1000, 1500, 532_400, 3.1e9)] == [
        *("0", "12", "1k", "1.5k", "532k", "3.1G")
    ]
