"""The native library as a whole: memory safety, threads, forks, and doing without it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from processes import run_python

from snip.engine import build, kernels
from snip.engine.kernels.library import share_torch_threads

COMPILER = build.find_compiler()
needs_kernels = pytest.mark.skipif(not kernels.available(), reason=str(kernels.reason()))
SANITIZERS = "-fsanitize=address,undefined"

# Odd sizes around every edge: vectors, lanes, tiles, empty layers. Answers are tested elsewhere.
EXERCISE = """
import os, sys
from pathlib import Path
import torch
from torch import nn
import snip, snip.engine.build
snip.engine.build.LIBRARY = Path(sys.argv[1])
from snip.engine import kernels as k
from snip.engine.kernels.library import forget_instruction_set, library

torch.manual_seed(0)  # a tiny network may be drawn without any signal
SHAPES = (16, 3, 1, 1), (1, 3, 2, 1), (4, 5, 3, 0), (16, 1, 2, 0)

def exercise():
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for batch in (1, 3, 17, 100):
            for density in (0.0, 0.3):
                mask = torch.rand(13, 9) < density
                index = k.LinearIndex.from_mask(mask)
                x, dy = torch.randn(9, batch), torch.randn(13, batch)
                w = torch.randn(index.kept)
                y = k.linear_forward(index, w, x, bias=torch.randn(13), relu=True)
                k.linear_backward(index, w, x, dy, y=y, dx=torch.empty_like(x),
                                  dw=torch.empty_like(w), db=torch.empty(13))
                rows, drows = x.t().contiguous(), dy.t().contiguous()
                for turned in (False, True):
                    plain = k.LinearIndex.from_mask(mask.t().contiguous() if turned else mask)
                    k.plain_forward(plain, w, rows, bias=torch.randn(13), turned=turned)
                    k.plain_backward(plain, w, rows, drows, dx=torch.empty_like(rows),
                                     dw=torch.empty_like(w), db=torch.empty(13), turned=turned)
                    k.unpack_weights(plain, w, torch.zeros(plain.rows, plain.columns))
                    k.pack_weights(plain, torch.zeros(plain.rows, plain.columns))
                for lanes, size, step, pad in SHAPES:
                    mask = torch.rand(6, 5, size, size) < density
                    conv = k.ConvIndex(mask, (5, 9, 7), (step, step), (pad, pad), lanes=lanes)
                    w = torch.randn(conv.kept)
                    x = k.rows_to_blocks(torch.randn(batch, 5, 9, 7), lanes=lanes)
                    y = k.conv_forward(conv, w, x, batch, bias=torch.randn(6), relu=True)
                    k.conv_backward_input(conv, w, y, batch)
                    k.conv_backward_weights(conv, x, y, batch)
            x = k.rows_to_blocks(torch.randn(batch, 3, 5, 7))
            y, mean, variance = k.norm_train(x, batch, torch.ones(3), torch.zeros(3), relu=True)
            k.norm_backward(x, y, batch, torch.ones(3), torch.zeros(3), mean, variance, relu=True)
            window = k.Window((5, 7), (3, 2), (2, 2), (1, 0))
            y, which = k.max_pool(x, batch, window)
            k.max_pool_backward(y, which, window)
            k.mean_pool_backward(k.mean_pool(x, batch), (5, 7))
            k.columns_to_blocks(k.blocks_to_columns(x, batch), (3, 5, 7))
            k.blocks_to_rows(x, batch)
            hidden, steps = 5, 3
            for gates in (3, 4):
                index = k.LinearIndex.from_mask(torch.rand(gates * hidden, hidden) < 0.5)
                w, g = torch.randn(index.kept), torch.randn(gates * hidden, steps * batch)
                h, c = torch.zeros(2, hidden, (steps + 1) * batch)
                carry = torch.zeros(2, hidden, batch)
                if gates == 4:
                    k.lstm_forward(index, w, g, h, c, batch)
                    k.lstm_backward(index, w, g, c, None, *carry, batch)
                else:
                    from_h = k.gru_forward(index, w, None, g, h, batch)
                    k.gru_backward(index, w, g, from_h, h, None, carry[0], batch)
    for batch in (1, 5, 19):
        images, labels = torch.randn(batch, 2, 9, 11), torch.randint(0, 3, (batch,))
        net = nn.Sequential(
            nn.Conv2d(2, 5, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(5, 4, 2, stride=2),
            nn.ReLU(), nn.Flatten(), nn.Linear(16, 7), nn.ReLU(), nn.Linear(7, 3),
        )
        snip.prune(net, (images, labels), sparsity=0.6)
        for ways in ({}, {"0": "winograd"}):
            fast = snip.accelerate(net, images, ways=ways)
            assert (fast.snip_conversion.straight is None) == bool(ways)
            optimizer = torch.optim.SGD(fast.parameters(), lr=0.1, momentum=0.9)
            step = snip.training_step(fast, optimizer)
            step(images, labels), step(images, labels)
            with torch.no_grad():
                fast(images)
for name in k.instruction_sets():
    os.environ["SNIP_KERNELS"] = name
    forget_instruction_set()
    exercise()
# The sanitized library and no other.
print(library()._name == sys.argv[1], *k.instruction_sets())
"""


@pytest.mark.skipif(COMPILER is None or sys.platform != "linux", reason="needs a C++ compiler")
def test_clean_under_sanitizers(tmp_path: Path) -> None:
    assert COMPILER is not None
    asked = [COMPILER, "-print-file-name=libasan.so"]
    runtime = subprocess.run(asked, capture_output=True, text=True)
    if not Path(runtime.stdout.strip()).is_absolute():
        pytest.skip("the compiler has no address sanitizer")
    flags = ("-O0", "-g1", SANITIZERS, "-fno-sanitize-recover=all")
    sets = kernels.instruction_sets()
    objects = build.compile_objects(tmp_path, COMPILER, flags=flags, sets=sets)
    target = tmp_path / "_kernels.so"
    link = [COMPILER, "-shared", "-pthread", SANITIZERS, *map(str, objects), "-o", str(target)]
    subprocess.run(link, check=True)
    build.seal(target)
    # Preloaded, the sanitizer puts guard zones around torch's allocations too.
    preload = {"LD_PRELOAD": runtime.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0"}
    done = run_python(EXERCISE, str(target), **preload)
    assert done.stdout.split() == ["True", *sets], done.stderr[-3000:]


# A child of fork has no threads but its own; torch's products may hang there, ours must not.
FORKED = """
import os, sys, numpy, torch
from snip.engine import kernels
from snip.engine.kernels.library import share_torch_threads
torch.manual_seed(0)
torch.set_num_threads(2)
share_torch_threads(sys.argv[1] == "torch")
mask = torch.rand(64, 100) < 0.5
weight, x = torch.randn(64, 100) * mask, torch.randn(100, 256)
index, values, want = kernels.LinearIndex.from_mask(mask), weight[mask], (weight @ x).numpy()
right = lambda: numpy.allclose(kernels.linear_forward(index, values, x).numpy(), want, atol=1e-4)
before, child = right(), os.fork()
if child == 0:
    os._exit(0 if right() and right() else 1)
print(before, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), right())
"""


@needs_kernels
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("threads", ["torch", "own"])
def test_threads_start_again_after_a_fork(threads: str) -> None:
    done = run_python(FORKED, threads)
    assert done.stdout == "True 0 True\n", done.stderr[-3000:]


@needs_kernels
def test_own_threads_give_the_same_answers() -> None:
    torch.set_num_threads(3)
    mask = torch.rand(64, 100) < 0.5
    weight, x = torch.randn(64, 100) * mask, torch.randn(100, 256)
    index = kernels.LinearIndex.from_mask(mask)
    share_torch_threads(False)
    try:
        for _ in range(50):
            got = kernels.linear_forward(index, weight[mask], x)
            assert torch.allclose(got, weight @ x, atol=1e-4)
    finally:
        share_torch_threads(True)


def test_without_a_library_the_reason_is_given() -> None:
    script = (
        "from pathlib import Path; import snip.engine.build as b; b.LIBRARY = Path('absent.so')\n"
        "from snip.engine import kernels; print(kernels.available(), kernels.reason())"
    )
    done = run_python(script, SNIP_NO_KERNELS="")
    assert done.stdout.startswith("False absent.so was not built"), done.stderr
    assert "C++ compiler" in done.stdout


TESTS_WITHOUT_A_LIBRARY = """
import sys
from pathlib import Path
import pytest, snip.engine.build as build
build.LIBRARY = Path("absent.so")
sys.exit(pytest.main(["--collect-only", "-q", *sys.argv[1:]]))
"""


@pytest.mark.parametrize(
    ("wanted", "code"),
    [("", pytest.ExitCode.USAGE_ERROR), ("1", pytest.ExitCode.OK)],
    ids=["as it is", "SNIP_NO_KERNELS"],
)
def test_tests_without_a_library_fail_unless_that_is_asked_for(wanted: str, code: int) -> None:
    here = str(Path(__file__).with_name("test_accelerate.py"))
    done = run_python(TESTS_WITHOUT_A_LIBRARY, here, SNIP_NO_KERNELS=wanted)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("absent.so was not built" in done.stderr) == (code != pytest.ExitCode.OK)


def test_build_without_a_compiler_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(OSError, match="no C\\+\\+ compiler"):
        build.build_library(tmp_path / "library.so")
