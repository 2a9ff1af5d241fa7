"""Other checkouts of Snip: their commits, native libraries, and processes that import them."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


def seeing(checkout: Path) -> dict[str, str]:
    """The environment in which `snip` is that of a checkout, with the benchmarks of this one."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(checkout / "src"), str(HERE)])}


def commit_of(checkout: Path) -> str:
    """The commit of a checkout, with a plus if files differ from it."""
    command = ["git", "-C", str(checkout), "describe", "--always", "--abbrev=12", "--dirty=+"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def build(checkout: Path) -> int:
    """Compile the native parts that a checkout lacks or has of other sources; 0 if that worked."""
    command = [sys.executable, "-m", "snip.engine.build"]
    return subprocess.run(command, env=seeing(checkout), cwd=checkout, check=False).returncode


def build_kernels(checkout: Path) -> None:
    """Compile the kernels of a checkout that has none, or those of other sources: it runs dense.

    All its rows would say so, and nobody would know why.
    """
    asked = "from snip.engine.kernels.library import available; raise SystemExit(not available())"
    command = [sys.executable, "-c", asked]
    if subprocess.run(command, env=seeing(checkout), cwd=checkout, check=False).returncode:
        build(checkout)


def export(commit: str, repository: Path, folder: Path) -> None:
    """Write the files of a commit into a folder, without a trace in the repository."""
    git = ["git", "-C", str(repository), "archive", "--format=tar", commit]
    packed = subprocess.run(git, check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")


def resolved(commit: str, repository: Path) -> str:
    """The short digest of a commit, a branch or a tag; ValueError if there is no such commit."""
    git = [
        "git",
        "-C",
        str(repository),
        "rev-parse",
        "--short=12",
        "--verify",
        f"{commit}^{{commit}}",
    ]
    done = subprocess.run(git, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"there is no commit {commit!r}")
    return done.stdout.strip()
