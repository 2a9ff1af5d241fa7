"""Settings in words, and runs that look alike told apart in the list and on the page."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from cli_fixtures import Snip
from page_parts import TRAIN, page_of, small_run

from snip.cli.repeating import command_of
from snip.page.finding import read_run
from snip.page.names import look as page_look
from snip.page.telling import all_told
from snip.runs import RunConfig
from snip.runs.naming import look
from snip.runs.settings import name_in_words, told_apart, value_in_words

BASE = RunConfig("lenet-300-100", 0.9)
BATCH = replace(BASE, score_batch_size=1000)
DECAY = replace(BASE, train=replace(BASE.training, weight_decay=0.0))


def test_settings_in_words() -> None:
    assert name_in_words("train.weight_decay") == "weight decay"
    values = (10_000, 0.0005, (25_000, 50_000), (), True, "sgd", None)
    said = ["10,000", "0.0005", "25,000 and 50,000", "none", "True", "sgd", "None"]
    assert [value_in_words(value) for value in values] == said


@pytest.mark.parametrize("look", [look, page_look])
def test_only_runs_that_look_alike_are_told_apart_and_only_by_what_differs(look) -> None:
    assert look(BASE) == look(BATCH) == look(DECAY)
    other = replace(BASE, sparsity=0.95)
    seeds = [BASE, replace(BASE, seed=1), other]
    assert told_apart(seeds, look) == ["", "", ""]
    assert told_apart([BASE, BATCH, other], look) == [
        "score batch size 100",
        "score batch size 1,000",
        "",
    ]
    assert told_apart([BASE, BATCH, DECAY], look) == [
        "score batch size 100, weight decay 0.0005",
        "score batch size 1,000, weight decay 0.0005",
        "score batch size 100, weight decay 0",
    ]
    # What another seed of the same settings is told by, each seed is told by.
    assert told_apart([BASE, replace(BATCH, seed=1)], look) == [
        "score batch size 100",
        "score batch size 1,000",
    ]


@pytest.fixture(scope="module")
def alike(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs with the same name but for its digest."""
    folder = tmp_path_factory.mktemp("alike")
    small_run(folder / "one")
    small_run(folder / "other", score_batch_size=7)
    return folder


def test_the_list_says_what_names_do_not_show(alike: Path, snip: Snip) -> None:
    _, out, _ = snip("runs", "--out", str(alike))
    assert "differs in" in out
    assert f"score batch size {TRAIN.batch_size}" in out
    assert "score batch size 7" in out


def test_names_on_the_page_are_told_apart(alike: Path) -> None:
    names = ["lenet-300-100 · mnist · snip 95% · 40 iterations · seed 0"]
    assert f">{names[0]}<" in page_of(alike / "one")
    both = page_of(alike)
    assert f">{names[0]}<" not in both
    for size in (TRAIN.batch_size, 7):
        assert f"40 iterations · score batch size {size} · seed 0" in both
        assert f"snip 95%, score batch size {size}" in both  # beside the paper


def test_no_two_runs_on_a_page_have_one_name(alike: Path, tmp_path: Path) -> None:
    shutil.copytree(alike / "one", tmp_path / "copy")
    runs = [read_run(folder) for folder in (alike / "one", alike / "other", tmp_path / "copy")]
    names = [one.shown.name for one in all_told(runs, command_of)]
    assert [name.rpartition(" · ")[2] for name in names] == ["one", "seed 0", "copy"]
    # A long list of settings is cut before it takes the seed away.
    drops = [
        replace(BASE, train=replace(BASE.training, lr_drops=tuple(range(n, 60)))) for n in (1, 2)
    ]
    long = [replace(one, seed=seed) for one in drops for seed in (0, 1)]
    runs = [replace(runs[0], config=config, result=None) for config in long]
    names = [one.shown.name for one in all_told(runs, command_of)]
    assert [name.rpartition(" · ")[2] for name in names] == ["seed 0", "seed 1"] * 2
    assert len(set(names)) == 4


def test_whole_channels_are_in_a_name() -> None:
    assert "snip 90%, channel" in page_look(replace(BASE, granularity="channel"))
