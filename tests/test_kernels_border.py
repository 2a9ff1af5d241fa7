"""The border to C++: declarations, structs and numbers on both sides, and how it is compiled."""

import ctypes
import re
import subprocess
from ctypes import byref
from pathlib import Path

import pytest
from kernel_fixtures import COMPILER

from snip.engine import build, kernels
from snip.engine.kernels import border, constants, structs
from snip.engine.kernels.library import kernel, library

if not kernels.available():
    pytest.skip(str(kernels.reason()), allow_module_level=True)

HEADERS = sorted(build.NATIVE.glob("*.hpp"))


def declarations() -> str:
    return library().snip_declarations().decode()


@pytest.fixture
def _fresh_structs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Structs without fields, as before the library is loaded."""
    fresh = {name: type(name, (structs.NativeStruct,), {}) for name in structs.STRUCTS}
    monkeypatch.setattr(border, "STRUCTS", fresh)


def test_every_marked_kernel_is_declared_and_found() -> None:
    text = "\n".join(header.read_text() for header in HEADERS)
    marked = re.findall(r"^SNIP_KERNEL void (\w+)\(", text, re.M)
    assert marked
    declared = border.Declarations.read(declarations())
    assert sorted(marked) == sorted(declared.kernels)
    for name in declared.kernels:
        assert kernel(name) is not None


def test_a_signature_is_that_of_the_header() -> None:
    found = border.Declarations.read(declarations()).kernels
    assert found["sgd_update"] == ["Parameter*", "int64", "pointer"]
    assert found["conv_weights"] == ["ConvPlan*", *["pointer"] * 3, "int64", "int32"]


def test_another_struct_or_a_misspelt_field_is_an_error() -> None:
    with pytest.raises(ctypes.ArgumentError):
        kernel("sgd_update")(byref(structs.WindowStruct()), 0, None)
    with pytest.raises(AttributeError):
        structs.WindowStruct(in_height=3)


def test_a_number_that_differs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "RELU", 4)
    with pytest.raises(border.BorderError, match="RELU"):
        border.prototypes(declarations())


@pytest.mark.usefixtures("_fresh_structs")
@pytest.mark.parametrize("line", ["field in_h int32 8 4\n", "field silents int32 168 4\n"])
def test_a_field_that_the_marks_miss_is_noticed(line: str) -> None:
    assert line in declarations()
    with pytest.raises(border.BorderError, match="ConvPlan"):
        border.prototypes(declarations().replace(line, ""))


@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("isa", build.instruction_sets())
def test_every_header_compiles_on_its_own(isa: str, tmp_path: Path) -> None:
    assert COMPILER is not None
    sources = []
    for header in HEADERS:
        sources.append(tmp_path / f"{header.stem}.cpp")
        sources[-1].write_text(f'#include "{header}"\n#include "{header}"\n')
    flags = [*build.COMMON, "-Wno-unused-function", "-Werror", *build.instruction_sets()[isa]]
    command = [COMPILER, "-fsyntax-only", *flags, *map(str, sources)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def test_nothing_runs_when_the_library_is_loaded() -> None:
    """An initialiser of an instruction set's file would run on machines that do not have it."""
    assert b"snip_kernel" in build.LIBRARY.read_bytes()
    assert b"_GLOBAL__sub_I" not in build.LIBRARY.read_bytes()


def test_building_without_sources_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(build, "NATIVE", tmp_path)
    monkeypatch.setattr(build, "find_compiler", lambda: "c++")
    with pytest.raises(OSError, match="source archive"):
        build.build_library(tmp_path / "library.so")
