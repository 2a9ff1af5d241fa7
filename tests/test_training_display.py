"""The progress of a training on a terminal and off one."""

import io
import sys

import pytest

from snip.common.text import duration
from snip.training import display
from snip.training.display import Display, summary
from snip.training.metrics import Running


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def running() -> Running:
    return Running(loss=25.0, wrong=4, images=100, seconds=1.0)


def test_summary_has_loss_error_speed_and_time_left() -> None:
    text = summary(100, 1100, 50.0, running())
    assert text == "loss 0.2500, error 4.00%, 50.0 steps/s, 0:20 left"
    assert summary(0, 10, 0.0, Running()).endswith("? left")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0:00"), (59.6, "1:00"), (61, "1:01"), (3661, "1:01:01"), (48 * 3600, "48:00:00"),
        (48 * 3600 + 1, "2 days"), (5713 * 3600 + 1095, "238 days"), (1e8, "1,157 days"),
    ],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_short_work_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with Display(total=10) as shown:
        shown.update(5, running())
    assert capsys.readouterr() == ("", "")


def test_lines_on_stderr_off_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(display, "LINE_EVERY", 0.0)
    with Display(total=10, done=2) as shown:
        shown.update(3, running())
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("iteration 3/10, loss 0.2500, error 4.00%")
    with Display(total=10, enabled=False) as shown:
        shown.update(3, running())
    assert capsys.readouterr() == ("", "")


def test_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(display, "PATIENCE", 0.0)
    monkeypatch.setattr(display, "BAR_EVERY", 0.0)
    monkeypatch.setenv("COLUMNS", "160")
    with Display(total=10) as shown:
        shown.update(3, running())
        shown.update(4, running())
    text = terminal.getvalue()
    assert "training" in text
    assert "4/10" in text
    assert "error 4.00%" in text
    assert "left" in text
