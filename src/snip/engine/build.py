"""Compiles the native kernels; needs only Python and a C++ compiler, so that setup.py can use it.

The library has a plain C interface, loaded with ctypes: it links neither Python nor torch, so one
binary serves every version of both, and building it needs neither.
"""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

NATIVE = Path(__file__).parent / "native"
LIBRARY = Path(__file__).with_name("_kernels.so")

# Not -march=native: the binary picks its instruction set where it runs, not where it was built.
COMMON = ("-std=c++17", "-fPIC", "-Wall", "-Wextra", "-pthread")
OPTIMIZED = ("-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math")
X86_SETS = {"isa_avx2.cpp": ("-mavx2", "-mfma"), "isa_avx512.cpp": ("-mavx512f", "-mfma")}


def sources() -> dict[Path, tuple[str, ...]]:
    """Each source file of this machine's library with the compiler flags of its own."""
    flags: dict[str, tuple[str, ...]] = {"isa_portable.cpp": ()}
    if platform.machine().lower() in ("x86_64", "amd64"):
        flags |= X86_SETS
    flags |= {"dispatch.cpp": (), "parallel.cpp": (), "memory.cpp": ()}
    return {NATIVE / name: own for name, own in flags.items()}


def find_compiler() -> str | None:
    """$CXX, or the first C++ compiler on the path that takes GCC's vector extension."""
    names = [os.environ.get("CXX"), "c++", "g++", "clang++"]
    return next((found for name in names if name and (found := shutil.which(name))), None)


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(command)}\n{done.stderr or done.stdout}")


def compile_objects(
    folder: Path, compiler: str, *, flags: Sequence[str] = OPTIMIZED, without: Sequence[str] = ()
) -> list[Path]:
    """Compile the source files into the folder, a few at a time; `without` names some to omit."""
    wanted = [source for source in sources() if source.name not in without]
    jobs = {source: folder / f"{source.stem}.o" for source in wanted}

    def one(source: Path) -> None:
        own = sources()[source]
        _run([compiler, *COMMON, *flags, *own, "-c", str(source), "-o", str(jobs[source])])

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(one, jobs))
    return list(jobs.values())


def build_library(target: Path = LIBRARY) -> None:
    """Compile and link the library; OSError with the compiler's words when that fails."""
    compiler = find_compiler()
    if compiler is None:
        raise OSError("no C++ compiler found (looked for $CXX, c++, g++, clang++)")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        objects = compile_objects(Path(folder), compiler)
        linked = Path(folder) / target.name
        _run([compiler, "-shared", "-pthread", *map(str, objects), "-o", str(linked)])
        # Beside the target first: replacing the file keeps a process that has it mapped alive.
        staged = target.with_suffix(".new")
        shutil.copy(linked, staged)
        os.replace(staged, target)


if __name__ == "__main__":
    try:
        build_library()
    except OSError as error:
        sys.exit(f"The native kernels could not be built: {error}")
    sys.stdout.write(f"Built {LIBRARY}\n")
