"""What `snip reproduce` measures and times beside its runs, and of which code that is."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cli_fixtures import Snip

from snip.common.source import code_digest
from snip.experiments import EXPERIMENTS
from snip.experiments.measures.maps import packed
from snip.experiments.records.parts import origin
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
