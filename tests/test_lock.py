"""A folder that two processes make, and one of them takes away again."""

import shutil
from pathlib import Path

import pytest

from snip.common.lock import LOCK, BusyError, locked, waiting_lock


def test_a_folder_that_goes_while_it_is_locked_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The moment between making the folder and opening its file is too short to hit by chance."""
    folder, mkdir, gone = tmp_path / "runs", Path.mkdir, []

    def taken_away(place: Path, **how: bool) -> None:
        mkdir(place, **how)
        if place == folder and not gone:
            gone.append(place)
            shutil.rmtree(place)

    monkeypatch.setattr(Path, "mkdir", taken_away)
    with pytest.raises(BusyError, match="runs was removed by another process"), locked(folder):
        pass
    gone.clear()
    with waiting_lock(folder, seconds=5):
        assert (folder / LOCK).exists()
    assert gone
