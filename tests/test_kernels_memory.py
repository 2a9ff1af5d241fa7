"""Running out of memory or of threads is an exception, and the next call works."""

import sys

import pytest
from processes import run_python

from snip.engine import kernels

if not kernels.available():
    pytest.skip(str(kernels.reason()), allow_module_level=True)

# A limit on the address space a little above what the process has; what needs more is refused.
LIMIT = """
import resource, sys, torch
from pathlib import Path
from snip.engine import kernels
from snip.engine.kernels.library import library, share_torch_threads
from snip.engine.kernels.winograd import WinogradShape, winograd_forward

def limited(more, call):
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, hard))
    try:
        call()
        return "no error"
    except (MemoryError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
torch.manual_seed(0)
torch.set_num_threads(2)
share_torch_threads(sys.argv[1] == "torch")
"""

# Each of two threads needs 64 MB of scratch, inside the team.
MEMORY = (
    LIMIT
    + """
shape = WinogradShape(32768, 4, (2, 2), (1, 1))
x, weights = torch.randn(2, 32768, 2, 2, 16), torch.randn(4, 32768, 3, 3)
small = WinogradShape(2, 3, (4, 4), (1, 1)), torch.randn(3, 2, 3, 3), torch.randn(4, 2, 4, 4, 16)
winograd_forward(*small, 64)  # starts the threads
print(limited(40 << 20, lambda: winograd_forward(shape, weights, x, 32)))
rows = kernels.blocks_to_rows(x, 32)
want = torch.nn.functional.conv2d(rows.double(), weights.double(), padding=1)
got = kernels.blocks_to_rows(winograd_forward(shape, weights, x, 32), 32)
print((got - want).abs().max().item() < 1e-4 * want.abs().max().item())
print(library().snip_scratch_bytes() <= 64 << 20)
"""
)

THREADS = (
    LIMIT
    + """
mask = torch.ones(64, 100) > 0
index, values = kernels.LinearIndex.from_mask(mask), torch.randn(6400)
x, y = torch.randn(100, 512), torch.empty(64, 512)
work = lambda: kernels.linear_forward(index, values, x, out=y)
torch.set_num_threads(1); work(); torch.set_num_threads(2)
print(limited(1 << 20, work))
y.zero_(); work()
print(torch.allclose(y, values.view(64, 100) @ x, atol=1e-3))
"""
)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of the address space are Linux's")
@pytest.mark.parametrize("threads", ["torch", "own"])
def test_no_memory_for_scratch_is_an_exception(threads: str) -> None:
    done = run_python(MEMORY, threads)
    error, *rest = done.stdout.splitlines() or [done.stderr[-3000:]]
    assert error.startswith("MemoryError: not enough memory for 671"), done.stderr[-3000:]
    assert "bytes of scratch" in error
    assert rest == ["True", "True"], done.stderr[-3000:]


@pytest.mark.skipif(sys.platform != "linux", reason="limits of the address space are Linux's")
def test_threads_that_cannot_be_started_are_an_exception() -> None:
    done = run_python(THREADS, "own")
    error, *rest = done.stdout.splitlines() or [done.stderr[-3000:]]
    assert error.startswith("RuntimeError: cannot start a thread"), done.stdout
    assert rest == ["True"], done.stderr[-3000:]
