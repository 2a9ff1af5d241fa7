"""`snip reproduce` on real MNIST with schedules of a few steps: its files, resuming, mistakes."""

import csv
import json
import shutil
from pathlib import Path

import pytest
from cli_fixtures import Snip, files
from reproduce_fixtures import NAME, TABLE, TRIAL, changed, record

from snip.cli.reproduce import _works
from snip.experiments import EXPERIMENTS
from snip.experiments.kinds import scaled
from snip.experiments.sweep.reproduce import Reproduction
from snip.experiments.sweep.request import Request
from snip.experiments.sweep.work import Place


@pytest.mark.usefixtures("reproduced_copy")
def test_the_record_holds_configurations_seeds_numbers_and_both_rules(reproduced: Path) -> None:
    found = record()
    rows = [row for row in found["rows"] if row["runs"]]
    assert [(row["label"], row["config"]["sparsity"]) for row in rows] == [
        ("reference", 0.0), ("reference", 0.0), ("SNIP", 0.95),
    ]  # fmt: skip
    assert (found["done"], found["asked"], found["scale"]) == (6, 2 * 20, 0.0002)
    for row in rows:
        assert [run["seed"] for run in row["runs"]] == [0, 1]
        errors = [run["test_error"] for run in row["runs"]]
        assert row["selected"]["mean"] == pytest.approx(50 * sum(errors))
        assert row["best"]["mean"] <= row["selected"]["mean"] + 1e-9
        assert {"kept", "seconds", "machine", "date", "versions"} <= row["runs"][0].keys()
    assert rows[2]["runs"][0]["kept"] == 13_331
    # Without the rows that were chosen: later commands add others to the same results.
    assert found["command"] == "snip reproduce table1 --seeds 2 --scale 0.0002"
    text = Path(f"results/{NAME}.json").read_text()
    assert not any(place in text for place in (str(reproduced), "/home", "/root"))


@pytest.mark.usefixtures("reproduced_copy")
def test_tables_say_what_was_run_and_what_is_missing() -> None:
    markdown = Path(f"results/{NAME}.md").read_text()
    assert "| SNIP | lenet-300-100 | 95 | 1.6 |" in markdown
    assert "0.0002 of the full schedule" in markdown
    assert "17 of 20 rows are not run yet" in markdown
    assert "lenet-5-caffe diverges at the paper's rate" in markdown
    assert "LWC" not in markdown.partition("Trained for")[0]
    with Path(f"results/{NAME}.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["label"] for line in lines] == ["reference", "reference", "SNIP"]
    assert float(lines[2]["selected_mean"]) == pytest.approx(
        record()["rows"][2]["selected"]["mean"]
    )
    assert lines[2]["pretraining"] == "no"


@pytest.mark.usefixtures("reproduced_copy")
def test_what_is_done_is_not_done_again(snip: Snip) -> None:
    before = changed()
    code, out, _ = snip(*TABLE, "--seeds", "2")
    assert code == 0
    assert changed() == before
    assert len(before) == 6
    assert "SNIP" in out


@pytest.mark.usefixtures("reproduced_copy")
def test_a_dry_run_says_what_is_left_and_writes_nothing(snip: Snip) -> None:
    before = files()
    code, out, _ = snip(*TABLE, "--seeds", "3", "--dry-run", "--jobs", "2")
    assert code == 0
    assert "2 of 3" in out
    assert "3 runs to do" in out
    assert files() == before


@pytest.mark.usefixtures("reproduced_copy")
def test_runs_whose_folders_are_gone_stay_in_the_record(snip: Snip) -> None:
    before = record()["rows"]
    shutil.rmtree("runs")
    experiment = EXPERIMENTS["table1"]
    request = Request(Place(Path("runs")), Path("results"), seeds=2, scale=0.0002)
    work = Reproduction(experiment, request)
    work.read_runs()
    assert [row["runs"] for row in work.record()["rows"]] == [row["runs"] for row in before]
    # A trial at another scale is another file, and has none of these runs.
    other = Reproduction(experiment, Request(Place(Path("runs")), Path("results"), scale=0.5))
    assert other.record()["done"] == 0
    assert other.path != work.path


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is damaged or of another version"),
        ('{"experiment": "table1", "format": 99, "rows": []}', "format 99"),
        ('{"experiment": "fig1", "format": 1, "rows": []}', "of experiment fig1"),
        ('{"experiment": "table1", "format": 1}', "(it has no title)"),
    ],
)
@pytest.mark.usefixtures("empty_folder")
def test_a_record_of_another_version_is_refused_and_kept(
    snip: Snip, content: str, said: str
) -> None:
    Path("results").mkdir()
    path = Path(f"results/{NAME}.json")
    path.write_text(content)
    code, _, error = snip(*TABLE)
    assert code == 2
    assert said in error
    assert "move it away: runs whose folders are still there are read again" in error
    assert path.read_text() == content
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tabel1"], "did you mean 'table1'"),
        (["table1", "--only", "lenet-9"], "is in no row of table1"),
        (["table1", "--scale", "0"], "scale is 0"),
        (["table1", "--scale", "2"], "scale is 2"),
        (["table1", "--seeds", "0"], "seeds is 0"),
        (["table1", "--jobs", "0"], "jobs is 0"),
        (["table1", "--time"], "has nothing to time"),
    ],
)
@pytest.mark.usefixtures("empty_folder")
def test_mistakes_are_told_before_anything_is_written(
    snip: Snip, arguments: list[str], said: str
) -> None:
    code, _, error = snip("reproduce", *arguments)
    assert code == 2
    assert said in error
    assert files() == []


@pytest.mark.usefixtures("empty_folder")
def test_data_that_is_not_here_is_told_and_the_rest_goes_on(snip: Snip) -> None:
    rows = ["--only", "lstm-s_mnist_snip", "--only", "alexnet-s"]
    code, out, error = snip("reproduce", "table2", "--scale", "0.00005", "--seeds", "1", *rows)
    assert code == 1
    assert "2 rows of table2 left out: cifar-10 is not in" in error
    assert "SNIP_DATA" in error
    assert "lstm-s" in out
    (folder,) = Path("runs").iterdir()
    assert folder.name.startswith("lstm-s_mnist_snip-0.95_redraw_4it")
    found = json.loads(Path("results/table2-scale-5e-05.json").read_text())
    assert found["done"] == 1
    absent = [row["config"]["dataset"] for row in found["rows"] if row["data"] == "absent"]
    assert absent == ["cifar-10"] * 16
    assert Path("results/table2-scale-5e-05.md").read_text().count("cifar-10 is not here") == 16


@pytest.mark.usefixtures("empty_folder")
def test_where_no_data_is_here_nothing_is_written(snip: Snip) -> None:
    asked = ["table2", "--scale", "0.00005", "--seeds", "1", "--only", "alexnet-s"]
    code, out, error = snip("reproduce", *asked)
    assert (code, out) == (1, "")
    assert error.count("cifar-10 is not in") == 1
    assert error.endswith("nothing was run, see the warnings above.\n")
    assert not Path("results").exists()
    assert not Path("runs").exists()


@pytest.mark.usefixtures("reproduced_copy")
def test_a_run_that_fails_is_in_the_record_until_it_succeeds(snip: Snip) -> None:
    config = next(r for r in EXPERIMENTS["table1"].rows() if r.label == "SNIP").at(2)
    config = scaled(config, 0.0002)
    strange = Path("runs", config.folder_name, "strange.txt").absolute()
    strange.parent.mkdir()
    strange.write_text("not a run")
    out = ["--out", str(strange.parents[1])]
    only = ["--only", "snip-0.95"]
    command = ["reproduce", "table1", *TRIAL, *only, "--seeds", "3", *out]
    code, shown, error = snip(*command)
    assert code == 1
    assert f"{strange.parent} exists and is no run folder" in error
    (row,) = (row for row in record()["rows"] if row["failed"])
    assert [run["seed"] for run in row["runs"]] == [0, 1]
    (failed,) = row["failed"]
    assert (failed["run"], failed["seed"]) == (config.folder_name, 2)
    assert failed["error"].startswith(f"{config.folder_name} exists and is no run folder")
    assert record()["failed"] == 1
    assert f"seed 2 failed: {config.folder_name} exists and is no run folder" in shown
    markdown = Path(f"results/{NAME}.md").read_text()
    assert "1 run failed" in markdown
    assert f"seed 2 failed: {config.folder_name} exists" in markdown
    assert "seed 2 failed" in Path(f"results/{NAME}.csv").read_text()
    strange.unlink()
    code, shown, _ = snip(*command)
    assert code == 0
    assert "failed" not in shown
    assert (record()["failed"], [r["failed"] for r in record()["rows"] if r["failed"]]) == (0, [])


@pytest.mark.usefixtures("empty_folder")
def test_a_dry_run_says_which_rows_have_no_data(snip: Snip) -> None:
    code, out, _ = snip("reproduce", "tableC", "--dry-run")
    assert code == 0
    lines = [line for line in out.splitlines() if "150,000" in line]
    assert len(lines) == 10
    assert all("no data" in line for line in lines)
    assert "0 runs to do" in out


@pytest.mark.usefixtures("empty_folder")
def test_the_list_of_experiments(snip: Snip) -> None:
    code, out, _ = snip("reproduce")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == list(EXPERIMENTS)


@pytest.mark.usefixtures("reproduced_copy")
def test_a_damaged_run_is_told_and_the_others_are_shown(snip: Snip) -> None:
    path = next(path for path in changed() if "snip-0.95" in str(path))
    path.write_text("{")
    Path(f"results/{NAME}.json").unlink()
    code, out, error = snip(*TABLE, "--seeds", "2")
    assert code == 1
    assert f"{path} is damaged" in error
    assert "reference" in out
    assert record()["done"] == 5
    assert path.read_text() == "{"


def test_what_trains_nothing_is_the_same_at_every_scale(tmp_path: Path) -> None:
    asked = Request(Place(tmp_path / "runs"), tmp_path / "results", seeds=1, scale=0.01)
    named = {work.experiment.name: work for work in _works("all", asked, time=False)}
    assert named["fig1"].request.command == "snip reproduce fig1 --seeds 1 --scale 0.01"
    for name in ("fig2", "figA1", "figA2", "layers"):
        assert named[name].request.command == f"snip reproduce {name}"
        assert named[name].path.name == f"{name}.json"


@pytest.mark.usefixtures("empty_folder")
def test_all_takes_the_experiments_that_have_such_rows(
    snip: Snip, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SNIP_CACHE", str(tmp_path_factory.mktemp("cache")))
    flags = ["--only", "gru-b", "--dry-run", "--seeds", "1", "--scale", "0.0001"]
    code, out, _ = snip("reproduce", "all", *flags)
    assert code == 0
    assert out.count("runs to do") == 2  # gru-b is in table 2 and in an ablation of it
    assert "\n2 runs to do" in out
    assert "\n4 runs to do" in out  # that of the network with a constant too
    assert "All 2 experiments" in out
    assert files() == []
