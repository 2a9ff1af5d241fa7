"""The bar of anything long."""

import io
import sys

import pytest

from snip.common import console
from snip.common.console import track


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_bar_is_drawn_twice_a_second_not_for_every_item(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(console, "PATIENCE", 0.0)
    assert list(track(range(2000), description="counting", total=2000)) == list(range(2000))
    assert 1 <= terminal.getvalue().count("counting") < 200


def test_short_work_and_logs_stay_silent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list(track("ab", description="counting")) == ["a", "b"]
    assert capsys.readouterr() == ("", "")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(console, "PATIENCE", 600.0)  # two items take less, however busy it is here
    assert list(track("ab", description="counting")) == ["a", "b"]
    assert "counting" not in terminal.getvalue()


def test_what_is_tracked_inside_another_stays_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(console, "PATIENCE", 0.0)
    for _ in track(range(3), description="rounds", total=3):
        assert list(track("ab", description="scoring")) == ["a", "b"]
    assert "rounds" in terminal.getvalue()
    assert "scoring" not in terminal.getvalue()
    assert list(track("ab", description="afterwards")) == ["a", "b"]
    assert "afterwards" in terminal.getvalue()
