"""`snip runs`: the list with states, comparing, removing."""

import shutil
from pathlib import Path

import pytest
from cli_fixtures import Snip

from snip.common.lock import is_held, locked
from snip.runs.folder import CONFIG, METRICS, RESULT
from snip.runs.listing import RUNNING, listed, run_folders

OUT = ["--out", "runs"]


@pytest.fixture
def three(finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of a finished run, a stopped one and one that has just begun."""
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "runs"
    for name in ("finished", "stopped", "new"):
        shutil.copytree(finished_run, runs / name)
    for name in ("stopped", "new"):
        (runs / name / RESULT).unlink()
    lines = (runs / "stopped" / METRICS).read_text().splitlines(keepends=True)
    (runs / "stopped" / METRICS).write_text(lines[0])
    (runs / "new" / METRICS).unlink()
    (runs / "no-run").mkdir()
    return runs


def test_states_progress_and_time_left(three: Path) -> None:
    assert [path.name for path in run_folders(three)] == ["finished", "new", "stopped"]
    finished, new, stopped = (listed(path) for path in run_folders(three))
    assert (finished.state, finished.done, finished.seconds_left) == ("finished", 60, 0.0)
    assert finished.result is not None
    assert (new.state, new.done, new.seconds_left) == ("stopped", 0, None)
    assert (stopped.state, stopped.done, stopped.steps) == ("stopped", 30, 60)
    said = [run.progress for run in (finished, new, stopped)]
    assert said[:2] == ["finished", "stopped, no evaluation yet"]
    assert said[2] == "stopped, 30 of 60 iterations evaluated"
    assert stopped.seconds_left == pytest.approx(stopped.seconds)  # half of it is done
    with locked(three / "stopped"):
        assert listed(three / "stopped").state == RUNNING
        assert is_held(three / "stopped")
    assert not is_held(three / "stopped")
    assert not is_held(three / "nowhere")


@pytest.mark.usefixtures("three")
def test_the_list_and_its_filters(snip: Snip) -> None:
    code, out, _ = snip("runs", *OUT)
    assert code == 0
    assert "3 runs: 1 finished, 0 running, 2 stopped" in out
    assert "50%" in out
    _, out, _ = snip("runs", *OUT, "--state", "finished")
    assert "1 run: 1 finished" in out
    assert "stopped " not in out.partition("1 run:")[0]
    _, out, _ = snip("runs", *OUT, "--method", "grasp")
    assert out.startswith("0 runs")
    _, out, _ = snip("runs", *OUT, "--model", "lenet-300-100", "--method", "snip")
    assert "3 runs" in out


@pytest.mark.usefixtures("three")
def test_a_list_of_the_runs_with_texts_in_their_names(snip: Snip) -> None:
    for texts, count in ((["e"], 3), (["ED"], 2), (["ed", "stop"], 1), (["ed", "new"], 0)):
        code, out, error = snip("runs", "list", *texts, *OUT)
        assert (code, error) == (0, "")
        assert out.splitlines()[-1].startswith(f"{count} run")
    code, out, error = snip("runs", "list", "ed", "nowhere", *OUT)
    assert out.startswith("0 runs")
    assert error == "no run has 'nowhere' in its name or its settings.\n"


def altered(folder: Path, old: str, new: str) -> None:
    """Another setting in the configuration of a run."""
    text = (folder / CONFIG).read_text()
    assert old in text
    (folder / CONFIG).write_text(text.replace(old, new))


def test_texts_find_settings_that_names_do_not_show(snip: Snip, three: Path) -> None:
    altered(three / "stopped", '"optimizer": "sgd"', '"optimizer": "adam"')
    altered(three / "new", '"batch_norm": "eval"', '"batch_norm": "train"')
    for text, name in (("ADAM", "stopped"), ("batch norm train", "new")):
        code, out, error = snip("runs", "list", text, *OUT)
        assert (code, error) == (0, "")
        assert out.splitlines()[-1].startswith("1 run:")
        assert name in out
        assert text.lower() in " ".join(out.split())  # it stands in the list itself
    for text, count in (("optimizer sgd", 2), ("lenet-300-100_mnist", 3)):  # a default; the look
        assert snip("runs", "list", text, *OUT)[1].splitlines()[-1].startswith(f"{count} run")


def test_a_run_that_looks_like_no_other_is_found_by_its_settings_too(
    snip: Snip, three: Path
) -> None:
    altered(three / "stopped", '"optimizer": "sgd"', '"optimizer": "adam"')
    altered(three / "stopped", '"iterations": 60', '"iterations": 50')
    out = snip("runs", "list", "adam", *OUT)[1]
    assert out.splitlines()[-1].startswith("1 run: 0 finished, 0 running, 1 stopped")


def test_the_folder_is_read_once_however_many_texts(
    snip: Snip, three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []

    def noted(out: Path) -> list[Path]:
        asked.append(out)
        return run_folders(out)

    monkeypatch.setattr("snip.cli.run_actions.run_folders", noted)
    snip("runs", "list", "e", "d", "nowhere", *OUT)
    assert [path.resolve() for path in asked] == [three]


@pytest.mark.parametrize("action", [["compare", "run", "copy"], ["remove", "run-to-try", "--yes"]])
def test_a_part_of_several_names_says_in_which_settings_they_differ(
    snip: Snip, three: Path, action: list[str]
) -> None:
    for old, new in (("finished", "run-to-try-1"), ("stopped", "run-to-try-2"), ("new", "copy")):
        (three / old).rename(three / new)
    altered(three / "run-to-try-2", '"optimizer": "sgd"', '"optimizer": "adam"')
    code, _, error = snip("runs", *action, *OUT)
    assert code == 2
    said = "is a part of 2 names ('run-to-try-1', 'run-to-try-2'): give more of it."
    apart = "run-to-try-1 has optimizer sgd; run-to-try-2 has optimizer adam."
    assert error.endswith(f"{said} {apart}\n")
    (three / "run-to-try-2" / CONFIG).write_text("{")  # whose settings nobody knows
    assert snip("runs", *action, *OUT)[2].endswith(f"{said}\n")
    assert len(run_folders(three)) == 3


def test_a_damaged_run_is_told_and_the_others_are_listed(snip: Snip, three: Path) -> None:
    (three / "new" / CONFIG).write_text("{")
    code, out, error = snip("runs", *OUT)
    assert code == 0
    assert "3 runs: 1 finished, 0 running, 1 stopped, 1 damaged (see above)" in out
    assert "is damaged" in error
    code, out, error = snip("runs", "--state", "damaged", *OUT)
    assert out == "1 run: 0 finished, 0 running, 0 stopped, 1 damaged (see above)\n"
    assert "is damaged" in error
    code, out, error = snip("runs", "--state", "stopped", *OUT)
    assert out.splitlines()[-1] == "1 run: 0 finished, 0 running, 1 stopped"
    assert error == ""
    code, out, _ = snip("runs", "remove", "new", "new", "--yes", *OUT)
    assert code == 0
    assert out.count("removed") == 1
    assert not (three / "new").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["lst"], "did you mean 'list'"),
        (["--state", "finisht"], "did you mean 'finished'"),
        (["--method", "snp"], "did you mean 'snip'"),
        (["--model", "lenet5"], "did you mean 'lenet-5-caffe'"),
        (["compare", "finished"], "compare was given 1 run:"),
        (["compare", "finished", "stoped"], "did you mean 'stopped'"),
        (["compare", "E", "finished"], "is a part of 3 names"),
        (["compare", "finished", "finished"], "finished was named twice"),
        (["compare", "finished", "stopped", "--picture", "curves.txt"], "end its name in one of"),
        (["remove"], "remove was given no run"),
        (
            ["remove", "finished", "--yes", "--state", "running", "--model", "vgg-c"],
            "and draws none: omit --model and --state. Nothing was removed.",
        ),
        (
            ["remove", "finished", "--yes", "--method", "x", "--model", "x", "--picture", "x.png"],
            "omit --method, --model and --picture. Nothing was removed.",
        ),
        (["list", "--yes", "--picture", "x.png"], "there are: omit --picture and --yes ("),
        (["--yes"], "there are: omit --yes ("),
        (
            ["compare", "finished", "stopped", "--yes", "--model", "vgg-c"],
            "and removes none: omit --model and --yes.",
        ),
        (["remove", "finished"], "there is no terminal: add --yes"),
        (["remove", "nothing-like-it", "--yes"], "unknown run"),
        (["remove", "stop", "--yes"], "'stop' is too little of a run's name"),
        (["remove", "o", "--yes"], "is too little of a run's name"),
        (["remove", "", "--yes"], "'' is too little of a run's name"),
    ],
)
def test_mistakes(snip: Snip, three: Path, arguments: list[str], said: str) -> None:
    code, _, error = snip("runs", *arguments, *OUT)
    assert code == 2
    assert said in error
    assert len(run_folders(three)) == 3


@pytest.mark.usefixtures("three")
def test_no_folder_of_runs_is_a_sentence(snip: Snip) -> None:
    code, _, error = snip("runs", "--out", "elsewhere")
    assert code == 2
    assert "there is no folder elsewhere" in error


def test_comparing_shows_what_differs_and_draws_the_curves(snip: Snip, three: Path) -> None:
    altered(three / "stopped", '"lr": 0.1', '"lr": 0.05')
    arguments = ["compare", "finished", "stopped", "--picture", "curves.svg"]
    code, out, _ = snip("runs", *arguments, *OUT)
    assert code == 0
    table = [line.split() for line in out.splitlines()]
    assert ["train.lr", "0.1", "0.05"] in table
    assert not any(line[:1] == ["train.momentum"] for line in table)
    assert any(line[:2] == ["test", "error"] and line[-1] == "-" for line in table)
    drawn = Path("curves.svg").read_text()
    assert "<svg" in drawn
    snip("runs", *arguments, *OUT)
    assert Path("curves.svg").read_text() == drawn


def test_names_with_dollars_are_drawn_as_they_are(snip: Snip, three: Path) -> None:
    (three / "finished").rename(three / "cost_$5^$a")
    arguments = ["compare", "cost_$5^$a", "stopped", "--picture", "curves.svg"]
    code, _, error = snip("runs", *arguments, *OUT)
    assert (code, error) == (0, "")
    assert "A: cost_$5^$a" in Path("curves.svg").read_text()


def test_more_runs_than_letters(snip: Snip, three: Path) -> None:
    for number in range(26):
        shutil.copytree(three / "stopped", three / f"copy-{number:02}")
    code, out, _ = snip("runs", "compare", *(path.name for path in run_folders(three)[:28]), *OUT)
    assert code == 0
    assert "\nZ: copy-25\nAA: finished\nAB: new\n" in out


def test_removing_asks_refuses_a_running_one_and_takes_the_whole_folder(
    snip: Snip, three: Path
) -> None:
    with locked(three / "stopped"):
        code, _, error = snip("runs", "remove", "stopped", "finished", "--yes", *OUT)
        assert code == 2
        assert "is at work" in error
    assert len(run_folders(three)) == 3
    code, out, _ = snip("runs", "remove", "stopped", "--yes", *OUT)
    assert code == 0
    assert "removed" in out
    assert [path.name for path in run_folders(three)] == ["finished", "new"]
    assert not (three / "stopped").exists()
