"""The wheel: it is made for this platform, is whole, and is of use where there is no compiler."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from snip.engine import build

ROOT = Path(__file__).parents[1]
PARTS = ("setup.py", "pyproject.toml", "README.md", "LICENSE")
LIBRARY = "snip/engine/_kernels.so"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir")
NAMES = "import snip.engine.kernels as k, snip, torch; print(k.reason(), snip.__file__, sep='|')"


def run(*command: str | Path, **settings: object) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel as `make wheel` builds it, from a copy: building writes beside the sources."""
    if not build.LIBRARY.exists():
        pytest.skip("the native library was not built: python -m snip.engine.build")
    source, made = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info", "_node.so")
    shutil.copytree(ROOT / "src", source / "src", ignore=unwanted)
    for name in PARTS:
        shutil.copy(ROOT / name, source)
    # Where the library is up to date it is not compiled again.
    run(*PIP, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", made, source)
    return next(made.glob("*.whl"))


def needed(requirements: Iterable[str], extras: Iterable[str] = ()) -> list[Requirement]:
    """Requirements that apply on this machine, with those of the extras."""
    needs = [Requirement(text) for text in requirements]
    cases = [{"extra": extra} for extra in ("", *extras)]
    return [n for n in needs if n.marker is None or any(map(n.marker.evaluate, cases))]


def link_dependencies(wheel: Path, site: Path) -> None:
    """Put what the wheel declares, and what that declares, into an empty environment as links.

    Copies would be the same files, and take longer. Nothing else of the environment that the
    tests run in can be seen, so that an import which is not declared fails.
    """
    with zipfile.ZipFile(wheel) as archive:
        (place,) = [name for name in archive.namelist() if name.endswith("METADATA")]
        metadata = archive.read(place).decode()
    waiting, seen = needed(re.findall(r"^Requires-Dist: (.*)$", metadata, re.M)), set()
    entries: set[Path] = set()  # many distributions may share a folder, such as CUDA's `nvidia`
    while waiting:
        one = waiting.pop()
        if (one.name.lower(), *sorted(one.extras)) not in seen:
            seen.add((one.name.lower(), *sorted(one.extras)))
            found = distribution(one.name)
            waiting += needed(found.requires or [], one.extras)
            names = {path.parts[0] for path in found.files} - {"..", "__pycache__"}
            entries |= {Path(found.locate_file(name)) for name in names}
    for entry in entries:
        (site / entry.name).symlink_to(entry)


def test_the_wheel_is_for_this_platform_and_whole(wheel: Path) -> None:
    platform = re.sub(r"[-.]", "_", sysconfig.get_platform())
    assert re.fullmatch(rf"snip_prune-[\w.]+-py3-none-{platform}\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (about,) = [name for name in names if name.endswith(".dist-info/WHEEL")]
        assert b"Root-Is-Purelib: false" in archive.read(about)
    modules = {str(p.relative_to(ROOT / "src")) for p in (ROOT / "src/snip").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == modules
    assert {LIBRARY, "snip/py.typed", "snip/cli/flags.json"} <= names
    assert "snip/engine/_node.so" not in names  # it is for one torch and one Python
    data = {p.name for p in (ROOT / "src/snip/data/mnist").glob("*.gz")}
    assert {name.rsplit("/")[-1] for name in names if name.endswith(".gz")} == data


def test_a_library_is_built_anew_unless_it_is_of_these_sources(tmp_path: Path) -> None:
    library = tmp_path / "library.so"
    assert not build.is_current(library, version="1.2")  # there is none
    library.write_bytes(f"...1.2 {build.digest()}\0...".encode())
    assert not build.is_current(library, version="1.2")  # not written whole
    build.seal(library)
    assert build.is_current(library, version="1.2")
    assert not build.is_current(library, version="1.20")
    library.write_bytes(b"...1.2 0123456789abcdef\0...")  # of other sources
    build.seal(library)
    assert not build.is_current(library, version="1.2")


def test_a_library_older_than_the_file_that_builds_it_is_built_anew(tmp_path: Path) -> None:
    library = tmp_path / "library.so"
    library.write_bytes(f"1.2 {build.digest()}\0".encode())
    build.seal(library)
    os.utime(library, (0, 0))
    assert not build.is_current(library, version="1.2")


def test_it_runs_in_an_empty_environment_without_a_compiler(wheel: Path, tmp_path: Path) -> None:
    where = tmp_path / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", where)
    python = where / "bin/python"
    env = {"PATH": str(where / "bin"), "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    site = Path(run(python, "-c", "import site; print(site.getsitepackages()[0])", env=env).strip())
    link_dependencies(wheel, site)
    # The index is out of reach: what pip needs and does not find there is an error.
    asked = ("install", "-q", "--no-index", "-c", ROOT / "constraints.txt", wheel)
    run(*PIP[:3], "--python", python, *asked, env={**os.environ, "PYTHONPATH": ""})

    assert not any(shutil.which(name, path=env["PATH"]) for name in ("c++", "g++", "clang++", "cc"))
    reason, file = run(python, "-c", NAMES, env=env, cwd=tmp_path).strip().split("|")
    assert reason == "None"
    assert Path(file).is_relative_to(site)
    demo = ("demo", "--iterations", "40", "--engine", "sparse")
    shown = run(where / "bin/snip", *demo, env=env, cwd=tmp_path)
    assert "What survived: runs/demo/survivors.png" in shown
    assert (tmp_path / "runs/demo/survivors.png").stat().st_size > 0
