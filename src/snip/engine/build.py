"""Compiles the native kernels; needs only Python and a C++ compiler, so that setup.py can use it.

The library has a plain C interface, loaded with ctypes: it links neither Python nor torch, so one
binary serves every version of both, and building it needs neither. A second, small library is the
node of autograd around the kernels: it serves one version of both, and Python does its work where
it is missing, in more time.
"""

import argparse
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

NATIVE = Path(__file__).parent / "native"
SEAL = b"snip"
LIBRARY = Path(__file__).with_name("_kernels.so")
KERNELS = NATIVE / "kernels.cpp"  # compiled once per instruction set
NODE = NATIVE / "torch" / "node.cpp"
NODE_LIBRARY = Path(__file__).with_name("_node.so")

# Not -march=native: the binary picks its instruction set where it runs, not where it was built.
COMMON = ("-std=c++17", "-fPIC", "-Wall", "-Wextra", "-pthread")
OPTIMIZED = ("-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math")


def instruction_sets() -> dict[str, tuple[str, ...]]:
    """Instruction sets of this kind of machine, with the compiler flags of each."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return {"portable": ()}
    return {"portable": (), "avx2": ("-mavx2", "-mfma"), "avx512": ("-mavx512f", "-mfma")}


def is_unwanted() -> bool:
    """True if the environment asks for no native code: none is built, and none is loaded."""
    return os.environ.get("SNIP_NO_KERNELS", "0") not in ("", "0")


def find_compiler() -> str | None:
    """$CXX, or the first C++ compiler on the path that takes GCC's vector extension."""
    names = [os.environ.get("CXX"), "c++", "g++", "clang++"]
    return next((found for name in names if name and (found := shutil.which(name))), None)


def digest(folder: Path | None = None) -> str | None:
    """Fingerprint of native sources, by default the kernels'; None if they are not installed."""
    sources = sorted(p for p in (folder or NATIVE).glob("*") if p.suffix in (".cpp", ".hpp"))
    if not sources:
        return None
    found = hashlib.sha256()
    for path in sources:
        found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def marks() -> list[str]:
    """What the headers mark for Python, as macros for native/border.hpp (see native/marks.hpp)."""
    text = "\n".join(path.read_text() for path in sorted(NATIVE.glob("*.hpp")))
    text = re.sub(r"//.*", "", text)
    kernels = re.findall(r"^SNIP_KERNEL void (\w+)\(", text, re.M)
    structs = ""
    for name, body in re.findall(r"^SNIP_STRUCT (\w+) \{(.*?)^\};", text, re.M | re.S):
        # Fields end where the first function begins; its own line holds no semicolon before it.
        fields = re.findall(r"(\w+)\s*[,;]", body.split("(")[0])
        structs += f"S({name})" + "".join(f"F({name},{field})" for field in fields)
    numbers = re.findall(r"^SNIP_ENUM \w+ \{(.*?)\};", text, re.M | re.S)
    constants = [name for body in numbers for name in re.findall(r"(\w+)\s*=", body)]
    return [
        "-DSNIP_KERNELS(K)=" + "".join(f"K({name})" for name in kernels),
        f"-DSNIP_STRUCTS(S,F)={structs}",
        "-DSNIP_CONSTANTS(C)=" + "".join(f"C({name})" for name in constants),
    ]


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(command)}\n{done.stderr or done.stdout}")


def compile_objects(
    folder: Path,
    compiler: str,
    *,
    flags: Sequence[str] = OPTIMIZED,
    sets: Collection[str] | None = None,
    version: str = "",
) -> list[Path]:
    """Compile all sources into the folder, a few at a time; `sets` names the instruction sets."""
    jobs = {
        path.stem: [f'-DSNIP_ORIGIN="{_origin(version)}"', str(path)]
        for path in NATIVE.glob("*.cpp")
        if path != KERNELS
    }
    for name, own in instruction_sets().items():
        if sets is None or name in sets:
            jobs[name] = [*own, f"-DSNIP_ISA={name}", *marks(), str(KERNELS)]

    def one(name: str) -> Path:
        made = folder / f"{name}.o"
        _run([compiler, *COMMON, *flags, *jobs[name], "-c", "-o", str(made)])
        return made

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(one, sorted(jobs)))


def _origin(version: str) -> str:
    """The version and the sources that a library is made of, as it says in its file."""
    return f"{version or 'unknown'} {digest()}"


def is_current(library: Path = LIBRARY, *, version: str = "") -> bool:
    """Whether a library was built from the sources as they are now, by this file as it is now."""
    return is_made_of(library, f"{_origin(version)}\0") and _is_later(library)


def is_node_current() -> bool:
    """True if the node was built for this torch and Python, by this file as it is now."""
    return is_made_of(NODE_LIBRARY, node_origin()) and _is_later(NODE_LIBRARY)


def is_made_of(library: Path, origin: str) -> bool:
    """True if a library is there, is whole and says that it was made of this."""
    return library.exists() and is_whole(library) and origin.encode() in library.read_bytes()


def _is_later(library: Path) -> bool:
    return library.stat().st_mtime >= Path(__file__).stat().st_mtime


def build_library(target: Path = LIBRARY, *, version: str = "") -> None:
    """Compile and link the library; OSError with the compiler's words when that fails.

    `version` is the package's, by which a library without sources beside it is recognised.
    """
    compiler = find_compiler()
    if compiler is None:
        raise OSError("no C++ compiler found (looked for $CXX, c++, g++, clang++)")
    if digest() is None:
        raise OSError(f"no sources in {NATIVE}: install snip from its source archive")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        objects = compile_objects(Path(folder), compiler, version=version)
        linked = Path(folder) / target.name
        _run([compiler, "-shared", "-pthread", *map(str, objects), "-o", str(linked)])
        _install(linked, target)


def node_origin() -> str:
    """The sources, torch and Python that the node is built from and for, as it says in its file."""
    import torch  # here, as the kernels are built without it

    python = sysconfig.get_config_var("SOABI")
    return f"snip's node {digest(NODE.parent)} for torch {torch.__version__} and {python}."


def build_node(target: Path = NODE_LIBRARY) -> None:
    """Compile the node of autograd for the torch and Python that run this; OSError if that fails.

    It needs the headers of both, and torch's are those of the version it was written for.
    """
    compiler = find_compiler()
    if compiler is None or not NODE.exists():
        raise OSError("no C++ compiler found, or no sources installed")
    import torch

    root, abi = Path(torch.__file__).parent, int(torch.compiled_with_cxx11_abi())
    headers = (root / "include", sysconfig.get_paths()["include"])
    with tempfile.TemporaryDirectory() as folder:
        linked = Path(folder) / target.name
        _run(
            [
                *(compiler, "-std=c++20", "-O1", "-fPIC", "-shared", "-fvisibility=hidden"),
                *(f'-DSNIP_ORIGIN="{node_origin()}"', f"-D_GLIBCXX_USE_CXX11_ABI={abi}"),
                *(word for path in headers for word in ("-isystem", str(path))),
                *(str(NODE), f"-L{root / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-lc10"),
                *("-o", str(linked)),
            ]
        )
        _install(linked, target)


def _install(linked: Path, target: Path) -> None:
    """Seal a library and put it in its place."""
    seal(linked)
    # Beside the target first: replacing the file keeps a process that has it mapped alive.
    staged = target.with_suffix(".new")
    shutil.copy(linked, staged)
    os.replace(staged, target)


def seal(library: Path) -> None:
    """Append the digest of the file to it. Loaders do not look behind the end of a library."""
    content = library.read_bytes()
    library.write_bytes(content + SEAL + hashlib.sha256(content).digest())


def is_whole(library: Path) -> bool:
    """Whether a library is as it was built. Loading one that was cut short ends the process."""
    content = library.read_bytes()
    end = len(content) - len(SEAL) - hashlib.sha256().digest_size
    return end > 0 and content[end:] == SEAL + hashlib.sha256(content[:end]).digest()


def main(arguments: Sequence[str] | None = None) -> None:
    """Build what is missing or of other sources; exit with the reason if the kernels fail."""
    parser = argparse.ArgumentParser(description="Compile the native kernels where Snip lies.")
    parser.add_argument("--kernels", action="store_true", help="leave the node of autograd out")
    only_kernels = parser.parse_args(arguments).kernels
    if is_unwanted():
        sys.stdout.write("Nothing was built: SNIP_NO_KERNELS is set\n")
        return
    from snip.common.machine import __version__

    try:
        # `pip install` has mostly just compiled it, which takes longer than all else here.
        if is_current(version=__version__):
            LIBRARY.touch()  # for make, which goes by times
        else:
            build_library(version=__version__)
    except OSError as error:
        sys.exit(
            f"The native kernels could not be built: {error}\n"
            "To use and test Snip without them, set SNIP_NO_KERNELS=1."
        )
    sys.stdout.write(f"Built {LIBRARY}\n")
    if only_kernels:
        return
    try:
        if is_node_current():
            NODE_LIBRARY.touch()
        else:
            NODE_LIBRARY.unlink(missing_ok=True)  # of another torch: make is to try again
            build_node()
        sys.stdout.write(f"Built {NODE_LIBRARY}\n")
    except (ImportError, OSError) as error:
        sys.stdout.write(f"Python is the node of autograd, as none could be built: {error}\n")


if __name__ == "__main__":
    main()
