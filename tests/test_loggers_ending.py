"""Loggers are ended however a training is left, and the error that says most is told."""

from collections.abc import Sequence

import pytest
from training_parts import StoppedError

from snip.common.errors import FileError
from snip.training import Metrics
from snip.training.loggers import begun


class Ending:
    """A logger that notes when it is ended, and may fail then or when it begins."""

    def __init__(self, ended: list[str], name: str, fails: str = "") -> None:
        self.ended, self.name, self.fails = ended, name, fails

    def begin(self, _history: Sequence[Metrics]) -> None:
        if self.fails == "begin":
            raise FileError(f"{self.name} cannot begin")

    def record(self, _metrics: Metrics) -> None: ...

    def end(self) -> None:
        self.ended.append(self.name)
        if self.fails:
            raise FileError(f"{self.name} cannot end")

    def phase(self, _name: str) -> "Ending":
        return self


def test_all_loggers_are_ended_and_the_first_error_of_it_is_told() -> None:
    ended: list[str] = []
    loggers = [Ending(ended, "a"), Ending(ended, "b", "end"), Ending(ended, "c", "end")]
    with pytest.raises(FileError, match="cannot end") as caught, begun(loggers, []):
        pass
    assert sorted(ended) == ["a", "b", "c"]
    assert str(caught.value).startswith(next(name for name in ended if name != "a"))


def test_an_error_of_the_training_is_not_hidden_by_one_of_its_loggers() -> None:
    ended: list[str] = []
    loggers = [Ending(ended, name, "end") for name in "ab"]
    with pytest.raises(StoppedError), begun(loggers, []):
        raise StoppedError
    assert sorted(ended) == ["a", "b"]


def test_a_logger_that_cannot_begin_is_told_and_those_before_it_are_ended() -> None:
    ended: list[str] = []
    loggers = [Ending(ended, "a", "end"), Ending(ended, "b", "begin"), Ending(ended, "c")]
    with pytest.raises(FileError, match="b cannot begin"), begun(loggers, []):
        raise AssertionError("the training began")
    assert sorted(ended) == ["a", "b"]  # b may have opened a file
