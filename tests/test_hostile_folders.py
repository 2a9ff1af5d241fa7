"""A run's folder: sums of its files, the same bytes for the same run, modes by the umask."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from cli_fixtures import Snip

import snip as library
from snip.common.files import write_tensors, write_text
from snip.runs import RunConfig, RunResult, run
from snip.training import TrainConfig, load_checkpoint

TRAINING = TrainConfig(iterations=4, lr_drops=(), batch_size=20, eval_every=2)
CONFIG = RunConfig("lenet-300-100", 0.99, train=TRAINING, engine="sparse")
# What differs from run to run: how long it took, and when.
TIMES = ("seconds", "cpu_seconds", "steps_per_second", "images_per_second", "date")


@pytest.fixture
def folder(finished_run: Path, tmp_path: Path) -> Path:
    """A copy of a finished run."""
    return Path(shutil.copytree(finished_run, tmp_path / "run"))


@pytest.fixture
def _strict_umask() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


def files_of(snip: Snip, folder: Path) -> dict[str, list[str]]:
    code, out, _ = snip("inspect", folder, "--json")
    assert code == 0
    return json.loads(out)["files"]


def test_inspect_says_that_nothing_changed(snip: Snip, folder: Path) -> None:
    assert files_of(snip, folder) == {"altered": [], "missing": [], "extra": []}
    assert "as the run left them" in snip("inspect", folder)[1]


@pytest.mark.parametrize(
    "name",
    ["model.safetensors", "selected.safetensors", "metrics.jsonl", "report.json", "checkpoint.pt"],
)
def test_inspect_says_what_was_altered(snip: Snip, folder: Path, name: str) -> None:
    data = bytearray((folder / name).read_bytes())
    at = data.rindex(b"1")  # a digit of a number, or a bit of a weight
    data[at] = ord("3")
    (folder / name).write_bytes(data)
    assert files_of(snip, folder)["altered"] == [name]
    assert f"altered: {name}" in snip("inspect", folder)[1]


def test_inspect_says_what_is_missing_and_extra(snip: Snip, folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "thesis.tex").write_text("mine")
    assert files_of(snip, folder) == {
        "altered": [],
        "missing": ["model.safetensors"],
        "extra": ["thesis.tex"],
    }
    (folder / "sums.json").unlink()
    code, out, _ = snip("inspect", folder)
    assert code == 0
    assert "there is no sums.json" in out


def test_inspect_without_masks_takes_the_sparsity_of_the_result(snip: Snip, folder: Path) -> None:
    (folder / "masks.safetensors").unlink()
    code, out, _ = snip("inspect", folder)
    assert code == 0
    assert dict(line.split(maxsplit=1) for line in out.splitlines())["sparsity"] == "95.00%"


def test_a_damaged_file_is_named_among_all_that_changed(snip: Snip, folder: Path) -> None:
    (folder / "masks.safetensors").write_bytes(b"")
    (folder / "report.json").write_text("{}")
    code, _, error = snip("inspect", folder)
    assert code == 2
    assert "altered: masks.safetensors, report.json" in error


def test_an_altered_result_is_refused(folder: Path) -> None:
    whole = RunResult.read(folder)
    text = (folder / "result.json").read_text()
    better = text.replace(f'"test_error": {whole.test_error}', '"test_error": 0.001')
    assert better != text
    (folder / "result.json").write_text(better)
    with pytest.raises(library.FileError, match=r"result\.json was altered .* or delete "):
        RunResult.read(folder)
    (folder / "result.json").write_text(text)
    metrics = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(metrics.replace('"iteration": 30', '"iteration": 29'))
    with pytest.raises(library.FileError, match=r"metrics\.jsonl was altered"):
        RunResult.read(folder).history()


@pytest.mark.parametrize("name", ["model.safetensors", "checkpoint.pt", "masks.safetensors"])
def test_altered_weights_are_refused(snip: Snip, folder: Path, name: str) -> None:
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(data)
    code, _, error = snip("inspect", folder / name)
    assert code == 2
    assert "was altered" in error


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="no /proc here")
@pytest.mark.parametrize("name", ["report.json", "result.json", "masks.safetensors"])
def test_a_file_that_cannot_be_read_is_named(snip: Snip, folder: Path, name: str) -> None:
    """The system calls it an ordinary file, and reading it fails."""
    (folder / name).unlink()
    (folder / name).symlink_to("/proc/self/mem")
    code, _, error = snip("inspect", folder)
    assert code == 2
    assert f"{name} is damaged" in error.replace("\n", " ")


def test_a_folder_without_sums_is_read(folder: Path) -> None:
    """An unfinished run has none, and neither has one of an earlier version."""
    (folder / "sums.json").unlink()
    assert RunResult.read(folder).history()


def test_the_sums_are_written_before_the_run_counts_as_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in between, the run is unfinished: the same command ends it."""

    class KilledError(Exception):
        pass

    def die(path: Path, text: str) -> None:
        if path.name == "result.json":
            raise KilledError
        write_text(path, text)

    with monkeypatch.context() as patch:
        patch.setattr("snip.runs.sums.files.write_text", die)
        with pytest.raises(KilledError):
            run(CONFIG, folder=tmp_path, progress=False)
    assert (tmp_path / "sums.json").exists()
    assert not (tmp_path / "result.json").exists()
    run(CONFIG, folder=tmp_path, progress=False)
    assert RunResult.read(tmp_path).history()


@pytest.mark.usefixtures("_strict_umask")
def test_the_same_run_writes_the_same_bytes_in_modes_of_the_umask(tmp_path: Path) -> None:
    places = [tmp_path / "one", tmp_path / "two"]
    for place in places:
        run(CONFIG, folder=place, progress=False)
    one, two = places
    names = sorted(path.name for path in one.iterdir())
    assert {path.stat().st_mode & 0o777 for path in one.iterdir()} == {0o640}
    exact = [n for n in names if n.endswith(".safetensors")] + ["config.json", "report.json"]
    assert len(exact) == 5
    for name in (*exact, "engine.json"):
        assert (one / name).read_bytes() == (two / name).read_bytes(), name
    results, metrics = (
        [_timeless(place, name) for place in places] for name in ("result.json", "metrics.jsonl")
    )
    assert results[0] == results[1]
    assert metrics[0] == metrics[1]
    weights = [load_checkpoint(place / "checkpoint.pt")["model"] for place in places]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


def test_headers_have_one_order(tmp_path: Path) -> None:
    """safetensors itself writes them in a different order in every file."""
    names = ["format", "order", "checksum", "a", "b", "c"]
    header = {name: f"of {name} \x1b \u00e9 \u2028" for name in names}
    tensors = {"w": torch.arange(3.0)}
    for number in range(8):
        write_tensors(tmp_path / str(number), tensors, header)
    assert len({(tmp_path / str(number)).read_bytes() for number in range(8)}) == 1


@pytest.mark.usefixtures("_strict_umask")
def test_every_kind_of_file_follows_the_umask(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 4)
    masks = library.Masks({"weight": torch.eye(4).bool()})
    masks.apply(model)
    masks.save(tmp_path / "masks")
    library.compact.save(model, tmp_path / "compact")
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o640}


def _timeless(place: Path, name: str) -> list[dict[str, object]]:
    text = (place / name).read_text()
    lines = text.splitlines() if name.endswith("l") else [text]
    return [{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in lines]
