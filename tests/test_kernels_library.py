"""Libraries that do not fit their sources or were damaged are refused: the network runs dense."""

import shutil
import subprocess
from pathlib import Path

import pytest
from kernel_fixtures import COMPILER
from processes import run_python

from snip.engine import build, kernels
from snip.engine.kernels.library import library

if not kernels.available():
    pytest.skip(str(kernels.reason()), allow_module_level=True)

REFUSED = """
import sys, warnings
from pathlib import Path
import torch
from torch import nn
import snip, snip.engine.build as build
build.LIBRARY, build.NATIVE = map(Path, sys.argv[1:])
from snip.engine import kernels
net, x = nn.Sequential(nn.Linear(4, 3)), torch.ones(2, 4)
snip.prune(net, (x, torch.tensor([0, 1])), sparsity=0.5)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    same = torch.equal(snip.accelerate(net, x)(x), net(x))
print(kernels.available(), same, kernels.reason(), caught[0].message)
"""


def refusal(library: Path, native: Path) -> str:
    """What a process says whose library and sources are these; it must run dense."""
    done = run_python(REFUSED, str(library), str(native))
    assert done.stdout.startswith("False True "), done.stdout + done.stderr[-3000:]
    assert "running dense" in done.stdout
    assert ("python -m snip.engine.build" in done.stdout) == native.exists()
    return done.stdout


def test_a_library_of_other_sources_is_refused(tmp_path: Path) -> None:
    changed = shutil.copytree(build.NATIVE, tmp_path / "native")
    with (changed / "update.hpp").open("a") as file:
        file.write("// changed\n")
    assert "built from sources" in refusal(build.LIBRARY, changed)


def test_without_sources_a_library_of_another_version_is_refused(tmp_path: Path) -> None:
    binary = build.LIBRARY.read_bytes()
    origin = library().snip_origin()
    other = tmp_path / "_kernels.so"
    assert binary.count(origin) == 1
    other.write_bytes(binary.replace(origin, b"9" + origin[1:]))
    build.seal(other)
    assert "built for version 9" in refusal(other, tmp_path / "absent")


@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
def test_a_library_from_before_this_check_is_refused(tmp_path: Path) -> None:
    assert COMPILER is not None
    source, target = tmp_path / "old.cpp", tmp_path / "_kernels.so"
    source.write_text('extern "C" int snip_set_runs(const char*) { return 1; }\n')
    subprocess.run([COMPILER, "-shared", "-fPIC", str(source), "-o", str(target)], check=True)
    build.seal(target)
    assert "snip_origin" in refusal(target, build.NATIVE)


@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("origin", ["", "one", "one two three"])
def test_a_library_of_unknown_origin_is_refused(tmp_path: Path, origin: str) -> None:
    assert COMPILER is not None
    source, target = tmp_path / "odd.cpp", tmp_path / "_kernels.so"
    source.write_text(f'extern "C" const char* snip_origin() {{ return "{origin}"; }}\n')
    subprocess.run([COMPILER, "-shared", "-fPIC", str(source), "-o", str(target)], check=True)
    build.seal(target)
    assert "does not fit this snip" in refusal(target, build.NATIVE)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_a_library_that_was_cut_short_is_refused(tmp_path: Path, share: float) -> None:
    binary = build.LIBRARY.read_bytes()
    target = tmp_path / "_kernels.so"
    target.write_bytes(binary[: int(len(binary) * share)])
    assert "not written whole" in refusal(target, build.NATIVE)


def test_a_library_with_a_flipped_bit_is_refused(tmp_path: Path) -> None:
    binary = bytearray(build.LIBRARY.read_bytes())
    binary[len(binary) // 2] ^= 1
    target = tmp_path / "_kernels.so"
    target.write_bytes(binary)
    assert "not written whole" in refusal(target, build.NATIVE)
