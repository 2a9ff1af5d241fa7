"""What `snip reproduce` measures and times beside its runs, and of which code that is."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cli_fixtures import Snip

from snip.common.errors import InputError
from snip.common.machine import code_digest
from snip.experiments import EXPERIMENTS
from snip.experiments.measures.maps import packed
from snip.experiments.records.parts import MADE, MEASURED, made_now, origin
from snip.experiments.sweep.reproduce import Reproduction
from snip.experiments.sweep.request import Request
from snip.experiments.sweep.work import Place


@pytest.mark.usefixtures("empty_folder")
def test_what_was_measured_by_other_code_is_measured_again(snip: Snip) -> None:
    experiment = replace(EXPERIMENTS["fig3"], rows=tuple)
    path = Path("results/fig3.json")

    def measured_after(change: Callable[[dict], object]) -> dict:
        if path.exists():
            known = json.loads(path.read_text())
            change(known)
            path.write_text(json.dumps(known))
        return Reproduction(experiment, Request(Place(Path("runs")), Path("results"))).run()

    first = measured_after(len)
    assert first["made"]["measured"]["code"] == code_digest()
    other = packed(torch.zeros(28, 28))
    kept = measured_after(lambda known: known["measured"].update(mean=other))
    assert kept["measured"]["mean"] == other  # by the same code: nothing is done again
    anew = measured_after(lambda known: known["made"]["measured"].update(code="older"))
    assert anew["measured"] == first["measured"]
    text = Path("results/fig3.md").read_text()
    assert f"Measures are {origin(anew, 'measured')}." in text


def test_times_say_of_which_commit_they_are(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    experiment = replace(EXPERIMENTS["granularity"], rows=tuple)
    made = {"commit": "abc1234", "code": "older", "date": "2026-11-01T10:00:00+00:00"}
    made["machine"] = {"cpu": "a processor", "cores": 64}
    for more, said in (
        ({"made": {"timing": made}}, "of 2026-11-01, commit abc1234, on a processor, 64 cores"),
        ({}, "of an older version that noted no commit"),
    ):
        place = tmp_path / str(len(more))
        work = Reproduction(experiment, Request(Place(place / "runs"), place))
        work.parts.held = {"timing": {}, **more}
        work.run()
        assert f"the times of granularity are {said}, and the code has changed since" in (
            capsys.readouterr().err
        )
        assert f"Times are {said}." in (place / "granularity.md").read_text()
    installed = {"made": {"timing": {**made, "commit": "", "versions": {"snip": "1.2"}}}}
    assert origin(installed, "timing") == "of 2026-11-01, version 1.2, on a processor, 64 cores"


@pytest.mark.usefixtures("empty_folder")
def test_a_figure_that_cannot_be_written_hides_no_numbers(snip: Snip) -> None:
    stem = Path("results/gap-scale-0.0002")
    stem.with_name(f"{stem.name}.png").mkdir(parents=True)  # in its place
    asked = ["gap", "--only", "base", "--seeds", "1", "--scale", "0.0002"]
    code, out, error = snip("reproduce", *asked)
    assert code == 1
    assert "lenet-300-100" in out
    assert f"cannot write {stem}.png" in error
    assert "The tables are written and the runs kept: the same command draws it." in error
    assert json.loads(stem.with_name(f"{stem.name}.json").read_text())["done"] == 2
    stem.with_name(f"{stem.name}.png").rmdir()
    assert snip("reproduce", *asked)[0] == 0
    assert stem.with_name(f"{stem.name}.png").is_file()


@pytest.mark.usefixtures("empty_folder")
@pytest.mark.parametrize(
    ("held", "asked", "missing", "done"),
    [
        (5, None, False, True),
        (5, 5, False, True),
        (5, 3, False, False),
        (2, None, False, False),  # as an earlier --seeds 2 left it
        (7, None, False, False),
        (5, 7, True, False),
        (7, 5, True, True),
        (2, None, True, False),
    ],
)
def test_maps_of_other_seeds_are_measured_again(
    held: int, asked: int | None, missing: bool, done: bool
) -> None:
    request = Request(Place(Path("runs")), Path("results"), seeds=asked, missing=missing)
    for name, expected in (("fig2", done), ("fig3", True)):  # fig3 measures nothing over seeds
        work = Reproduction(EXPERIMENTS[name], request)
        work.parts.held = {MEASURED: {"seeds": held}, MADE: {MEASURED: made_now()}}
        assert work.has_measures() is expected


@pytest.mark.usefixtures("empty_folder")
def test_maps_of_too_few_seeds_to_compare_are_refused_at_once() -> None:
    with pytest.raises(InputError, match="seeds is 1"):
        Reproduction(EXPERIMENTS["fig2"], Request(Place(Path("runs")), Path("results"), seeds=1))
