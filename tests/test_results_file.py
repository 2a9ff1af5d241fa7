"""Damaged results/NAME.json: one sentence that names the file, and nothing is written."""

import copy
import json
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cli_fixtures import Snip
from record_parts import record_with

from snip.common.errors import FileError
from snip.experiments import EXPERIMENTS
from snip.experiments.gallery.__main__ import main
from snip.experiments.gallery.pages import pages
from snip.experiments.records.record import Record
from snip.experiments.records.results_file import read_record
from snip.experiments.records.tables import table_files
from snip.experiments.sweep.reproduce import Reproduction
from snip.experiments.sweep.request import Request
from snip.experiments.sweep.work import Place

TOP = Path(__file__).parents[1]
HOSTILE = (None, "x", "", -1, 7, 0.5, 1e300, True, [], {}, [1], {"a": 1})


def whole(name: str) -> Record:
    """A record by hand with two seeds of each row; of one that was only measured, the committed."""
    if not EXPERIMENTS[name].rows():
        return json.loads((TOP / "results" / f"{name}.json").read_text())
    record = record_with(name, lambda _: [0.01, 0.02])
    return record | ({"timing": timing(record)} if EXPERIMENTS[name].time else {})


def timing(record: Record) -> Record:
    labels = [row["label"] for row in record["rows"]]
    models = {row["config"]["model"] for row in record["rows"]}
    ways = ("step_ms", "inference_ms")
    return {model: {way: dict.fromkeys(labels, 1.5) for way in ways} for model in models}


@pytest.fixture
def place(empty_folder: None, tmp_path: Path) -> Path:
    shutil.copytree(TOP / "docs", tmp_path / "docs")
    (tmp_path / "results").mkdir()
    return tmp_path


def made(name: str) -> None:
    """All that commands make of the results here, but for training, timing and drawing."""
    experiment, others = EXPERIMENTS[name], tuple(EXPERIMENTS.values())
    request = Request(Place(Path("runs")), Path("results"), missing=True)
    work = Reproduction(experiment, request, others)
    record = work.record()
    table_files(experiment, record)
    if experiment.unpack is not None:
        experiment.unpack(record)
    pages(Path("results"), Path("docs"))


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name != "budgets"])
def test_every_change_is_harmless_or_a_sentence(name: str) -> None:
    """A part is missing, or something else stands in its place."""
    record, chance = whole(name), random.Random(name)
    path = Path("results", f"{name}.json")
    places = sorted(parts(record), key=lambda place: (len(place), chance.random()))
    path.write_text(json.dumps(record))
    made(name)
    for place in chance.sample(places[:400], 12) + chance.sample(places, 12):
        path.write_text(json.dumps(changed(record, place, chance)))
        with suppress(FileError):
            made(name)


def parts(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all parts of a value."""
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield (*place, key)
            yield from parts(value[key], (*place, key))


def changed(record: Record, place: tuple[Any, ...], chance: random.Random) -> Record:
    other = copy.deepcopy(record)
    *outer, last = place
    holder: Any = other
    for key in outer:
        holder = holder[key]
    if chance.random() < 0.3:
        del holder[last]
    else:
        holder[last] = chance.choice(HOSTILE)
    return other


def row(record: Record) -> Record:
    return record["rows"][0]


CHANGES: list[tuple[str, Callable[[Record], object], str]] = [
    ("table1", lambda r: row(r)["runs"][0].update(seconds="3"), "rows[0].runs[0].seconds is '3'"),
    ("table1", lambda r: row(r)["runs"][1].update(test_error=None), "test_error is None"),
    ("table1", lambda r: row(r)["runs"][1].update(seed=-1), "a seed of rows[0] is -1"),
    ("table1", lambda r: r.update(others=[row(r)["runs"][0] | {"seed": -1}]), "of others is -1"),
    ("table1", lambda r: row(r)["runs"][0].pop("date"), "rows[0].runs[0] has no date"),
    ("table1", lambda r: row(r)["runs"][0]["machine"].pop("cpu"), "machine has no cpu"),
    ("table1", lambda r: row(r)["runs"].append(7), "is 7"),
    ("table1", lambda r: row(r)["config"].pop("dataset"), "rows[0].config has no dataset"),
    ("table1", lambda r: row(r).update(selected=None), "rows[0].selected is None"),
    ("table1", lambda r: row(r).update(failed=[1]), "rows[0].failed[0] is 1"),
    ("table1", lambda r: r.update(rows=3), "rows is 3"),
    ("table1", lambda r: r.update(timing=[]), "timing is []"),
    ("table1", lambda r: r.update(scale=0.01), "its scale is 0.01"),
    ("table1", lambda r: r.update(measured="x"), "measured is 'x'"),
    ("table1", lambda r: r.update(made={"timing": {}}), "made.timing has no code"),
    ("fig2", lambda r: r["measured"].pop("shown"), "no 'shown'"),
    ("fig2", lambda r: r["measured"]["mnist"]["maps"]["plain"][3].pop(), "invalid"),
    ("fig2", lambda r: r["measured"]["mnist"]["measures"][2].update(sparsity="x"), "damaged"),
    ("fig3", lambda r: r["measured"].update(mean="AAAA"), "invalid"),
    ("fig4", lambda r: row(r)["runs"][0]["curve"]["train_loss"].pop(), "damaged"),
    ("layers", lambda r: r["measured"]["networks"][1].pop("kept"), "no 'kept'"),
    ("granularity", lambda r: r["timing"].update({"lenet-5-caffe": 3}), "damaged"),
]


@pytest.mark.parametrize(("name", "change", "said"), CHANGES)
@pytest.mark.usefixtures("place")
def test_a_damaged_record_is_a_sentence_and_stays(
    snip: Snip, name: str, change: Callable[[Record], object], said: str
) -> None:
    record, path = whole(name), Path("results", f"{name}.json")
    change(record)
    path.write_text(json.dumps(record))
    before = path.read_bytes()
    for flags in ((), ("--dry-run",), ("--missing",)):
        code, _, error = snip("reproduce", name, *flags)
        assert code == 2
        assert f"error: {path} is damaged or of another version (" in error
        assert said in error
        assert "runs whose folders are still there are read again" in error
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert not Path("runs").exists()


@pytest.mark.usefixtures("place")
def test_bytes_that_are_no_text_are_a_sentence(snip: Snip) -> None:
    Path("results/fig1.json").write_bytes(b'{"experiment": "\xff\xfe"}')
    for flags in (("fig1",), ("fig1", "--dry-run"), ("table1", "--missing")):
        code, _, error = snip("reproduce", *flags)
        assert code == 2
        assert "results/fig1.json is damaged or of another version" in error


@pytest.mark.usefixtures("place")
def test_the_gallery_says_which_file_is_damaged_and_writes_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    record = whole("figA2")
    Path("results/fig2.json").write_text(json.dumps(whole("fig2")))
    record["measured"]["mnist"]["steadiness"].pop("plain")  # which only a claim looks at
    Path("results/figA2.json").write_text(json.dumps(record))
    Path("docs/gallery.md").write_text("as it was")
    assert main() == 2
    said = capsys.readouterr().err
    assert "error: results/figA2.json or results/fig2.json is damaged" in said
    assert "(no 'plain')" in said
    assert Path("docs/gallery.md").read_text() == "as it was"
    Path("results/figA2.json").unlink()
    assert main() == 0
    assert Path("docs/gallery.md").read_text() != "as it was"
    shutil.rmtree("docs")
    assert main() == 2
    assert "there is no page docs/methods.md." in capsys.readouterr().err


@pytest.mark.usefixtures("place")
def test_a_row_that_is_newer_than_the_times_has_none() -> None:
    record, path = whole("granularity"), Path("results/granularity.json")
    for times in record["timing"]["lenet-5-caffe"].values():
        del times["4x4 90%"]
    path.write_text(json.dumps(record))
    text = table_files(EXPERIMENTS["granularity"], read_record(path, EXPERIMENTS["granularity"]))
    (line,) = (line for line in text["md"].splitlines() if line.startswith("| 4x4 90% | lenet"))
    assert line.endswith("| - | - |")
