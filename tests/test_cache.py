"""One cache folder: everything that can be made again goes where the user's system says."""

from pathlib import Path

import numpy as np
import pytest

import snip
from snip.common.files import cache_folder
from snip.data.cache import cached
from snip.data.locate import download_folder
from snip.engine.convert.timings import Timings

SOURCE = Path(snip.__file__).parent


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ({"SNIP_CACHE": "mine", "XDG_CACHE_HOME": "xdg"}, "mine"),
        ({"SNIP_CACHE": "~/mine"}, "home/mine"),
        ({"XDG_CACHE_HOME": "xdg"}, "xdg/snip"),
        ({"XDG_CACHE_HOME": ""}, "home/.cache/snip"),
        ({}, "home/.cache/snip"),
    ],
)
def test_where_the_cache_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, setting: dict[str, str], expected: str
) -> None:
    for name in ("SNIP_CACHE", "XDG_CACHE_HOME", "SNIP_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name, place in setting.items():
        absolute = place if place[:1] in ("", "~") else str(tmp_path / place)
        monkeypatch.setenv(name, absolute)
    assert cache_folder() == tmp_path / expected


def test_every_cache_is_in_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("SNIP_CACHE", "SNIP_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    cached("key", (2,), lambda: np.zeros(2, dtype=np.uint8))
    timings = Timings()
    timings.get("work", lambda: lambda: None, lambda work: 1.0)
    timings.save()
    written = {path.relative_to(tmp_path).parts[:2] for path in tmp_path.rglob("*.*")}
    assert written == {("xdg", "snip")}
    assert download_folder(None) == tmp_path / "xdg" / "snip" / "data"


def test_nobody_else_looks_for_a_cache_folder() -> None:
    found = [p.name for p in SOURCE.rglob("*.py") if "XDG_CACHE_HOME" in p.read_text()]
    assert found == ["files.py"]


def test_a_relative_xdg_folder_is_ignored_as_its_specification_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("SNIP_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "somewhere")
    assert cache_folder() == tmp_path / ".cache" / "snip"
