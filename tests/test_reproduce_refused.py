"""`snip reproduce` tells before anything is done what cannot be done, or would change nothing."""

import sys
from pathlib import Path

import pytest
from cli_fixtures import Snip, files

from snip.common.errors import FileError
from snip.experiments import EXPERIMENTS
from snip.experiments.records.parts import MADE, MEASURED, made_now
from snip.experiments.sweep import needs as needed
from snip.experiments.sweep.estimate import show_estimate
from snip.experiments.sweep.needs import absent_data, require_writable
from snip.experiments.sweep.reproduce import Reproduction
from snip.experiments.sweep.request import Request, matching
from snip.experiments.sweep.work import Place

ONE_RUN = ["table1", "--scale", "0.0002", "--only", "snip-0.95", "--seeds", "1"]
TIMED = "--time times each network once, here and now, in place of training: omit "


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--seeds", "3"], "no experiment was named"),
        (["--download"], "no experiment was named"),
        (["granularity", "--time", "--dry-run"], f"{TIMED}--dry-run."),
        (["granularity", "--time", "--seeds", "2"], f"{TIMED}--seeds."),
        (["budgets", "--time", "--jobs", "2", "--on", "ray"], f"{TIMED}--jobs and --on."),
        (["all", "--time", "--only", "lenet"], f"{TIMED}--only."),
        (
            [*ONE_RUN, "--log", "tensorbord"],
            "unknown logger 'tensorbord': did you mean",
        ),
        ([*ONE_RUN, "--log", "tensorboard", "--dry-run"], "with the data that is here: omit --log"),
        (["fig1", "--dry-run", "--download"], "--dry-run says what there is to do with the data"),
        (["all", "--seconds", "4"], "--seconds is of --time alone"),
        (["fig2", "--seeds", "1"], "seeds is 1: it must be at least 2."),
        (["layers", "--seeds", "2"], "layers scores one draw of each network: omit --seeds."),
        (["fig2", "--scale", "0.1", "--dry-run"], "has no runs: omit --scale."),
        (["layers", "--only", "vgg", "--on", "ray"], "has no runs: omit --on and --only."),
        (["all", "--only", "lenet-9", "--dry-run"], "--only lenet-9 is in no row of any"),
    ],
)
@pytest.mark.usefixtures("empty_folder")
def test_options_that_would_change_nothing_are_refused(
    snip: Snip, arguments: list[str], said: str
) -> None:
    code, out, error = snip("reproduce", *arguments)
    assert (code, out) == (2, "")
    assert said in error
    assert files() == []


@pytest.mark.usefixtures("empty_folder")
def test_a_logger_without_its_library_is_told_before_the_first_run(
    snip: Snip, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    code, _, error = snip("reproduce", *ONE_RUN, "--log", "wandb")
    assert code == 2
    assert "pip install 'snip-prune[wandb]'" in error
    assert files() == []


@pytest.mark.usefixtures("empty_folder")
def test_what_only_says_where_and_how_goes_with_everything(snip: Snip) -> None:
    code, out, _ = snip(
        "reproduce", "fig2", "--dry-run", "--missing", "--jobs", "2", "--out", "there"
    )
    assert code == 0
    assert "This is to be done." in out


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("file", "file is a file: give a folder"),
        ("file/results", "file is a file: give a folder"),
        ("/proc/snip/results", "cannot write in /proc/snip/results: "),
    ],
)
@pytest.mark.parametrize("work", [ONE_RUN, ["granularity", "--time"], ["fig2"]])
@pytest.mark.usefixtures("empty_folder")
def test_results_that_cannot_be_written_are_told_before_anything_is_done(
    snip: Snip, work: list[str], place: str, said: str
) -> None:
    if place.startswith("/proc") and not Path("/proc/self").exists():
        pytest.skip("this system has no /proc")
    Path("file").write_text("as it was")
    code, out, error = snip("reproduce", *work, "--results", place)
    assert (code, out) == (2, "")
    assert f"error: {said}" in error
    assert files() == ["file"]
    assert Path("file").read_text() == "as it was"


@pytest.mark.parametrize("place", ["file", "file/runs", "/proc/snip/runs"])
@pytest.mark.parametrize("more", [[], ["--dry-run"]])
@pytest.mark.usefixtures("empty_folder")
def test_runs_that_cannot_be_written_are_told_before_anything_is_done(
    snip: Snip, place: str, more: list[str]
) -> None:
    if place.startswith("/proc") and (more or not Path("/proc/self").exists()):
        pytest.skip("a dry run writes nothing, and not every system has /proc")
    Path("file").write_text("as it was")
    code, out, error = snip("reproduce", *ONE_RUN, "--out", place, *more)
    assert (code, out) == (2, "")
    assert error.count("\n") == 1
    assert "file is a file: give a folder" in error or "cannot write in /proc/snip/runs" in error
    assert files() == ["file"]


@pytest.mark.usefixtures("empty_folder")
def test_a_data_folder_that_is_not_there_is_told_though_mnist_is_inside(snip: Snip) -> None:
    code, out, error = snip("reproduce", *ONE_RUN, "--data-dir", "nowhere")
    assert (code, out) == (2, "")
    assert "the data folder nowhere, named by --data-dir (data_dir=), does not exist" in error
    assert files() == []


@pytest.mark.usefixtures("empty_folder")
@pytest.mark.parametrize("name", ["gap", "all"])
def test_every_text_of_only_must_be_in_some_row(snip: Snip, name: str) -> None:
    texts = ["--only", "base", "--only", "momentun"]
    code, out, error = snip("reproduce", name, *texts, "--dry-run")
    assert (code, out) == (2, "")
    assert "--only momentun is in no row of" in error


@pytest.mark.usefixtures("empty_folder")
def test_more_seeds_than_anybody_means_are_refused(snip: Snip) -> None:
    code, _, error = snip("reproduce", "gap", "--seeds", "100000", "--dry-run")
    assert code == 2
    assert "seeds is 100000: it must be at most 10,000" in error


def test_trying_to_write_leaves_nothing(tmp_path: Path) -> None:
    require_writable(tmp_path / "new" / "results")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine.md").write_text("")
    require_writable(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.md"]


def test_a_folder_that_takes_a_lock_and_no_file_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that became read-only with an old lock in it."""

    def refuse(path: Path, _: bytes) -> None:
        raise FileError(f"cannot write {path}: Permission denied; choose another place.")

    monkeypatch.setattr(needed, "write_bytes", refuse)
    (tmp_path / ".lock").write_text("")
    with pytest.raises(FileError, match="Permission denied"):
        require_writable(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_data_that_may_be_fetched_is_fetched_when_work_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched = []

    def load(name: str, *, data_dir: Path | None, download: bool) -> None:
        fetched.append((name, download))
        if not download:
            raise FileError(f"{name} is not in {data_dir}")

    monkeypatch.setattr(needed, "load", load)
    names, asked = ("mnist", "cifar-10", "tiny-imagenet"), ("mnist", "cifar-10")
    place = Place(tmp_path / "runs", data_dir=tmp_path, download=True)
    nowhere = {"tiny-imagenet": f"tiny-imagenet is not in {tmp_path}"}
    assert absent_data(names, asked, place, fetch=False) == nowhere
    assert fetched == [("tiny-imagenet", False)]
    assert absent_data(names, asked, place, fetch=True) == nowhere
    assert fetched[1:] == [("cifar-10", True), ("tiny-imagenet", False)]  # MNIST is in the package


@pytest.mark.parametrize(
    ("work", "code", "said"),
    [
        (["fig2"], 1, "fig2: no network here. Without a network, "),
        (["layers"], 1, "layers: no network here. Without a network, "),
        (["budgets", "--only", "alexnet", "--seeds", "1", "--scale", "0.01"], 1,
         "6 rows of budgets left out: no network here. Without a network, "),
        (["granularity", "--time"], 2,
         "error: nothing was timed: 11 rows of granularity left out: no network here. "),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("empty_folder")
def test_what_cannot_be_fetched_is_told_once(
    snip: Snip, monkeypatch: pytest.MonkeyPatch, work: list[str], code: int, said: str
) -> None:
    def fail(*_: object) -> None:
        raise FileError("no network here.")

    monkeypatch.setattr("snip.data.download_file", fail)
    found, _, error = snip("reproduce", *work, "--download", "--data-dir", "mine")
    assert found == code
    assert said in error
    assert not Path("runs").exists()


@pytest.mark.usefixtures("empty_folder")
def test_what_is_done_takes_no_time() -> None:
    """In the sum over all experiments."""
    request = Request(Place(Path("runs")), Path("results"))
    work = Reproduction(EXPERIMENTS["fig2"], request)
    made = made_now() | {"seconds": 65.0}
    work.parts.held = {MEASURED: {"seeds": 5}, MADE: {MEASURED: made}}
    assert show_estimate(work) == {}
    made["code"] = "older"
    assert show_estimate(work) == {"fig2": 65}


def test_a_whole_label_stands_for_its_row_alone() -> None:
    rows = EXPERIMENTS["fig3"].rows()
    assert [row.label for row in matching(rows, ["batch 10"])] == ["batch 10"]
    assert len(matching(rows, ["batch"])) == 5
    rows = EXPERIMENTS["gap-conv"].rows()
    assert len(matching(rows, ["lenet-5-caffe"])) == len(rows)  # those that change it too
    assert {row.config.model for row in matching(rows, ["lenet-5-relu"])} == {"lenet-5-relu"}
