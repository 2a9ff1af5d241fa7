"""The border to C++: its declarations, libraries that do not fit, and sizes that are refused."""

import ctypes
import re
import shutil
import subprocess
from ctypes import byref
from pathlib import Path

import numpy as np
import pytest
import torch
from processes import run_python

from snip.common.errors import InputError
from snip.engine import build, kernels
from snip.engine.kernels import border, constants, structs
from snip.engine.kernels.library import kernel, library
from snip.engine.kernels.straight import Gradients, LayerStruct, NativeNetwork
from snip.engine.kernels.winograd import WinogradShape, winograd_forward

if not kernels.available():
    pytest.skip(str(kernels.reason()), allow_module_level=True)

COMPILER = build.find_compiler()
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
    assert "python -m snip.engine.build" in done.stdout
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


def straight(count: int = 1, lanes: int = 1, kind: int = constants.RECTIFIER) -> NativeNetwork:
    layers = [LayerStruct(kind=kind, inputs=4, outputs=4, values_at=-1, bias_at=-1)] * count
    return NativeNetwork(layers, lanes, 1, np.ones(4, dtype=bool))


def call_norm(lanes: int, batch: int) -> None:
    x, y, scale = torch.ones(2, 3, 5, lanes), torch.ones(2, 3, 5, lanes), torch.ones(3)
    addresses = (tensor.data_ptr() for tensor in (x, scale, scale, y))
    kernel("norm_apply")(*addresses, 3, 5 * lanes, lanes, batch, 0, 1)


def call_pool(height: int, width: int) -> None:
    window = structs.WindowStruct(kernel_h=height, kernel_w=width)
    kernel("max_pool")(None, None, None, byref(window), 0, 16, 1)


def call_conv(**sizes: int) -> None:
    plan = structs.ConvPlanStruct(**({"lanes": 16, "tile_h": 1, "tile_w": 1} | sizes))
    kernel("conv_forward")(byref(plan), *[None] * 5, 1, 0, 1)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: call_norm(12, 13), "at most 64, not 12"),
        (lambda: call_norm(128, 129), "at most 64, not 128"),
        (lambda: call_norm(0, 1), "at most 64, not 0"),
        (lambda: call_pool(16, 16), "255 positions, not 256"),
        (lambda: call_pool(0, 3), "255 positions, not 0"),
        (lambda: call_conv(lanes=0), "64 lanes, not 0"),
        (lambda: call_conv(tile_h=0), "row or more, not 0"),
        (lambda: call_conv(tile_w=0), "column or more, not 0"),
        (lambda: straight(65).forward(torch.ones(2, 4)), "64 layers, not 65"),
        (lambda: straight(1, 65).forward(torch.ones(2, 4)), "64 lanes, not 65"),
        (lambda: straight(1, 0).forward(torch.ones(2, 4)), "64 lanes, not 0"),
        (lambda: straight(kind=9).forward(torch.ones(2, 4)), "of kind 9"),
        (lambda: straight().forward(torch.ones(2, 5)), "rows of 4 features"),
        (
            lambda: Gradients(straight(), 2).fill(torch.ones(2, 4), torch.zeros(1).long()),
            "no batch of 2",
        ),
    ],
)
def test_sizes_that_kernels_assume_are_checked(call, words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        call()


LINEAR = kernels.LinearIndex.from_mask(torch.ones(3, 4) > 0)
CONV = kernels.ConvIndex(torch.ones(3, 4, 1, 1) > 0, (4, 2, 2))
SHAPE = WinogradShape(2, 3, (4, 4), (1, 1))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: kernels.rows_to_blocks(torch.ones(2, 3), lanes=0), "power of two"),
        (lambda: kernels.columns_to_blocks(torch.ones(3, 2), (3,), lanes=128), "power of two"),
        (lambda: kernels.blocks_to_rows(torch.ones(1, 3, 12), 12), "power of two"),
        (lambda: kernels.norm_train(torch.ones(2, 3, 4, 12), 13, None, None), "power of two"),
        (lambda: kernels.columns_to_blocks(torch.ones(4), (4,)), "two dimensions"),
        (lambda: kernels.Window((8, 8), (2, 2), (0, 2)), "strides"),
        (lambda: kernels.ConvIndex(CONV.mask, (4, 2, 2), lanes=128), "power of two"),
        (
            lambda: kernels.linear_forward(
                LINEAR, torch.ones(12), torch.ones(4, 2), bias=torch.ones(2)
            ),
            "bias",
        ),
        (
            lambda: kernels.conv_forward(
                CONV, torch.ones(12), torch.ones(1, 4, 2, 2, 16), 1, scale=torch.ones(3).double()
            ),
            "scale",
        ),
        (
            lambda: winograd_forward(SHAPE, torch.ones(9, 2, 3).mT, torch.ones(1, 2, 4, 4, 16), 1),
            "not of",
        ),
        (
            lambda: kernels.gru_forward(LINEAR, torch.ones(12), None, torch.ones(3, 0), LINEAR, 0),
            "at least one",
        ),
    ],
)
def test_wrong_sizes_never_reach_a_kernel(call, words: str) -> None:
    with pytest.raises(InputError, match=words):
        call()


def test_columns_whose_batch_is_not_contiguous_are_copied() -> None:
    x = torch.randn(5, 6)
    blocks = kernels.columns_to_blocks(x.t(), (6,), lanes=4)
    assert torch.equal(kernels.blocks_to_rows(blocks, 5), x)


def test_building_without_sources_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(build, "NATIVE", tmp_path)
    monkeypatch.setattr(build, "find_compiler", lambda: "c++")
    with pytest.raises(OSError, match="source archive"):
        build.build_library(tmp_path / "library.so")
