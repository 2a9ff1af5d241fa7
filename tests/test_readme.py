"""The README: its numbers are those of the committed results, and it stays short."""

from pathlib import Path

from readme import BLOCK, BLOCKS, README, filled


def test_every_number_is_that_of_the_results() -> None:
    """If this fails: python tools/readme.py."""
    text = README.read_text(encoding="utf-8")
    assert filled(text, run=False) == text
    assert {block[1] for block in BLOCK.finditer(text)} == {*BLOCKS}


def test_it_can_be_read_in_minutes() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    assert len(text.split()) <= 1900


def test_its_figure_is_there() -> None:
    assert (Path(README).parent / "docs/time-to-error.png").is_file()
