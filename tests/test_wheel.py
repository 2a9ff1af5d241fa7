"""The wheel and the source archive: both are whole and install, with or without a compiler."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from snip.engine import build

ROOT = Path(__file__).parents[1]
PARTS = ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")
LIBRARY = "snip/engine/_kernels.so"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir")
NAMES = "import snip.engine.kernels as k, snip, torch; print(k.reason(), snip.__file__, sep='|')"


def run(*command: str | Path, **settings: object) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is built: building writes beside the sources."""
    folder = tmp_path_factory.mktemp("source")
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info", "_node.so")
    shutil.copytree(ROOT / "src", folder / "src", ignore=unwanted)
    for name in PARTS:
        shutil.copy(ROOT / name, folder)
    return folder


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel as `make wheel` builds it."""
    if build.is_unwanted():
        pytest.skip("SNIP_NO_KERNELS is set")
    made = tmp_path_factory.mktemp("dist")
    # Where the library is up to date it is not compiled again.
    run(*PIP, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", made, source)
    return next(made.glob("*.whl"))


def empty_environment(folder: Path) -> tuple[Path, Path]:
    """A new environment's Python and its folder of packages, which has none."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    site = run(folder / "bin/python", "-c", "import site; print(site.getsitepackages()[0])")
    return folder / "bin/python", Path(site.strip())


def names_in(wheel: Path) -> set[str]:
    """The files of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def needed(requirements: Iterable[str], extras: Iterable[str] = ()) -> list[Requirement]:
    """Requirements that apply on this machine, with those of the extras."""
    needs = [Requirement(text) for text in requirements]
    cases = [{"extra": extra} for extra in ("", *extras)]
    return [n for n in needs if n.marker is None or any(map(n.marker.evaluate, cases))]


def declared(wheel: Path) -> list[Requirement]:
    """What the wheel needs on this machine."""
    with zipfile.ZipFile(wheel) as archive:
        (place,) = [name for name in archive.namelist() if name.endswith("METADATA")]
        metadata = archive.read(place).decode()
    return needed(re.findall(r"^Requires-Dist: (.*)$", metadata, re.M))


def link(waiting: list[Requirement], site: Path) -> None:
    """Put requirements, and what they need, into an empty environment as links.

    Copies would be the same files, and take longer. Nothing else of the environment that the
    tests run in can be seen, so that an import which is not declared fails.
    """
    waiting, seen = list(waiting), set()
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
    python, site = empty_environment(tmp_path / "environment")
    env = {"PATH": str(python.parent), "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    link(declared(wheel), site)
    # The index is out of reach: what pip needs and does not find there is an error.
    asked = ("install", "-q", "--no-index", "-c", ROOT / "constraints.txt", wheel)
    run(*PIP[:3], "--python", python, *asked, env={**os.environ, "PYTHONPATH": ""})

    assert not any(shutil.which(name, path=env["PATH"]) for name in ("c++", "g++", "clang++", "cc"))
    reason, file = run(python, "-c", NAMES, env=env, cwd=tmp_path).strip().split("|")
    assert reason == "None"
    assert Path(file).is_relative_to(site)
    demo = ("demo", "--iterations", "40", "--engine", "sparse")
    shown = run(python.parent / "snip", *demo, env=env, cwd=tmp_path)
    assert "What survived: runs/demo/survivors.png" in shown
    assert (tmp_path / "runs/demo/survivors.png").stat().st_size > 0


@pytest.fixture(scope="module")
def archive(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source archive, as `python -m build --sdist` makes it."""
    made = tmp_path_factory.mktemp("archive")
    script = "import sys, setuptools.build_meta as b; b.build_sdist(sys.argv[1])"
    run(sys.executable, "-c", script, made, cwd=source)
    return next(made.glob("*.tar.gz"))


@pytest.mark.skipif(build.is_unwanted(), reason="SNIP_NO_KERNELS is set")
def test_the_source_archive_builds_the_whole_wheel_with_setuptools_alone(
    archive: Path, wheel: Path, tmp_path: Path
) -> None:
    python, site = empty_environment(tmp_path / "environment")
    link([Requirement("setuptools")], site)
    quick = tmp_path / "c++"  # only compiling is tried: optimising takes three times as long
    quick.write_text(f'#!/bin/sh\nexec {build.find_compiler()} "$@" -O0\n')
    quick.chmod(0o755)
    env = {**os.environ, "CXX": str(quick), "PYTHONPATH": ""}
    asked = ("wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "-w", tmp_path)
    run(*PIP[:3], "--python", python, *asked, archive, env=env)
    made = next(tmp_path.glob("*.whl"))
    assert names_in(made) == names_in(wheel)

    with zipfile.ZipFile(made) as packed:
        packed.extractall(tmp_path / "site")
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    reason, file = run(sys.executable, "-c", NAMES, env=env, cwd=tmp_path).strip().split("|")
    assert reason == "None"
    assert Path(file).is_relative_to(tmp_path / "site")


def test_the_source_archive_has_every_file_of_the_package(archive: Path) -> None:
    with tarfile.open(archive) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    files = [path for path in (ROOT / "src/snip").rglob("*") if path.is_file()]
    made = (".pyc", ".so", ".txt")  # here, or for an editor
    wanted = {str(path.relative_to(ROOT)) for path in files if path.suffix not in made}
    assert {"src/snip/engine/native/kernels.cpp", "src/snip/cli/flags.json"} < wanted <= names
    assert not any(name.endswith(made[:2]) for name in names)


# Twice, at lines of their own: Python itself shows a warning once per line.
DENSE = """
import warnings, torch, snip
network, x = torch.nn.Sequential(torch.nn.Linear(4, 3)), torch.ones(2, 4)
snip.prune(network, (x, torch.tensor([0, 1])), sparsity=0.5)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    assert snip.accelerate(network, x) is network
    assert snip.accelerate(network, x) is network
print(snip.__file__, *(issubclass(one.category, snip.SnipWarning) for one in caught), sep="|")
"""


@pytest.mark.parametrize(
    "settings", [{"PATH": "/nowhere"}, {"SNIP_NO_KERNELS": "1"}], ids=["no compiler", "unwanted"]
)
def test_without_kernels_it_installs_and_warns_once(
    settings: dict[str, str], source: Path, tmp_path: Path
) -> None:
    here = shutil.copytree(source, tmp_path / "source", ignore=shutil.ignore_patterns("*.so"))
    kept = {k: v for k, v in os.environ.items() if k not in ("CXX", "SNIP_NO_KERNELS")}
    env = {**kept, **settings, "PYTHONPATH": str(tmp_path / "site")}
    asked = ("install", "-q", "--no-deps", "--no-build-isolation", "--no-index", here)
    run(*PIP, *asked, "--target", tmp_path / "site", env=env)
    assert not (tmp_path / "site" / LIBRARY).exists()
    file, *warned = run(sys.executable, "-c", DENSE, env=env, cwd=tmp_path).strip().split("|")
    assert Path(file).is_relative_to(tmp_path / "site")
    assert warned == ["True"]
