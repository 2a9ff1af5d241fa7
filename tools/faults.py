"""Plant one-line faults in copies of the present commit: the suite must catch every one.

    python tools/faults.py                       # all of them
    python tools/faults.py --only kappa-truncated pattern-regrows
    python tools/faults.py --jobs 2 --whole-suite    # what its tests miss meets all others too

tools/fault_table.py has the faults and the tests that should catch each. All these tests first run
without a fault, where they must pass. A fault is caught if one of its own then fails; BROKEN are
faults with which the tests cannot even start, or take more than ten minutes. The exit code is 1 if
a fault is not caught.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from fault_table import FAULTS, Fault

ROOT = Path(__file__).resolve().parents[1]
SOURCE = Path("src/snip")
NATIVE = (".cpp", ".hpp")
LIBRARIES = ("_kernels.so", "_node.so")
LONGEST, LONGEST_SUITE = 600, 7200  # seconds that the tests of a fault, or all tests, may take
TABLE_TEST = "test_faults.py"  # a planted line is not where the table says
FAILED, PASSED = 1, 0  # exit codes of pytest
CAUGHT, MISSED, BROKEN = "caught", "MISSED", "BROKEN"


class MovedError(Exception):
    """A fault of the table no longer fits the source."""


@dataclass(frozen=True)
class Outcome:
    """What became of a fault, the first test that failed or the reason, and the seconds it took."""

    fault: Fault
    verdict: str
    why: str
    seconds: float


def altered(fault: Fault, root: Path) -> str:
    """Text of the fault's file with the fault in it; MovedError if the table must be updated."""
    path = root / SOURCE / fault.file
    if not path.is_file():
        raise MovedError(f"{fault.name}: there is no {fault.file}")
    text = path.read_text(encoding="utf-8")
    count = text.count(fault.line)
    if count != 1:
        raise MovedError(f"{fault.name}: {fault.file} has {count} times: {fault.line}")
    if "\n" in fault.line + fault.instead or fault.line == fault.instead:
        raise MovedError(f"{fault.name}: a fault changes a part of one line")
    changed = text.replace(fault.line, fault.instead)
    if path.suffix == ".py":
        try:
            same = ast.dump(ast.parse(text)) == ast.dump(ast.parse(changed))
        except SyntaxError as error:
            raise MovedError(f"{fault.name}: {fault.file} would not compile: {error}") from error
        if same:
            raise MovedError(f"{fault.name}: the program would be the same")
    return changed


def check(fault: Fault, root: Path = ROOT) -> None:
    """Raise MovedError unless the fault fits the source and its tests exist."""
    altered(fault, root)
    for test in fault.tests.split():
        file, _, name = test.partition("::")
        path = root / "tests" / file
        if not path.is_file() or f"def {name.partition('[')[0]}" not in path.read_text("utf-8"):
            raise MovedError(f"{fault.name}: there is no test {test}")


@contextmanager
def planted(fault: Fault, copy: Path) -> Iterator[None]:
    """Inside the block, a copy of the project has the fault."""
    path, text = copy / SOURCE / fault.file, altered(fault, copy)
    before = path.read_bytes()
    try:
        _write(path, text.encode())
        if path.suffix in NATIVE:
            _build(copy)
        yield
    finally:
        _write(path, before)
        if path.suffix in NATIVE:
            _take_libraries(copy)


def _write(path: Path, content: bytes) -> None:
    """Write a file and delete its bytecode, which looks current after two changes in a second."""
    path.write_bytes(content)
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink()


def _build(copy: Path) -> None:
    command = [sys.executable, "-m", "snip.engine.build"]
    subprocess.run(command, env=_environment(copy), cwd=copy, check=True, capture_output=True)


def _take_libraries(copy: Path) -> None:
    """Put the libraries of this checkout into a copy; they are refused if they do not fit."""
    for name in LIBRARIES:
        built = ROOT / SOURCE / "engine" / name
        if built.exists():
            shutil.copy(built, copy / SOURCE / "engine" / name)


def _environment(copy: Path) -> dict[str, str]:
    own = {"PYTHONPATH": str(copy / "src"), "TMPDIR": str(copy / ".tmp")}
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | own


def make_copy(folder: Path) -> Path:
    """A copy of the present commit with its native libraries."""
    sys.path.append(str(ROOT / "bench"))
    from checkouts import export

    export("HEAD", ROOT, folder)
    (folder / ".tmp").mkdir()
    _take_libraries(folder)
    _build(folder)  # if this checkout has none, or of other sources
    return folder


def run_tests(
    copy: Path, tests: Sequence[str], *options: str, longest: int = LONGEST
) -> tuple[int | None, str]:
    """The exit code of pytest (None: it took too long), and the first failure or its last line."""
    targets = [f"tests/{test}" for test in tests]
    usual = ("-x", "-q", "--tb=no", "-rfE", "-p", "no:cacheprovider")
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *usual, *options, *targets],
            cwd=copy,
            env=_environment(copy),
            capture_output=True,
            text=True,
            timeout=longest,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, f"no end within {longest} s"
    first = re.search(r"^(?:FAILED|ERROR) tests/(\S+)", done.stdout, re.MULTILINE)
    lines = (done.stdout + done.stderr).strip().splitlines() or [""]
    return done.returncode, first[1] if first else lines[-1]


def tried(fault: Fault, copy: Path, *, whole_suite: bool) -> Outcome:
    """Plant a fault and run its tests, or all if they miss it."""
    start = time.monotonic()
    with planted(fault, copy):
        code, why = run_tests(copy, fault.tests.split())
        if code == PASSED and whole_suite:
            others = ("-n", "2", f"--ignore=tests/{TABLE_TEST}")
            code, why = run_tests(copy, [""], *others, longest=LONGEST_SUITE)
            why = f"by another test: {why}" if code == FAILED else why
    verdict = CAUGHT if code == FAILED else MISSED if code == PASSED else BROKEN
    return Outcome(fault, verdict, why, time.monotonic() - start)


def outcomes(
    faults: Sequence[Fault], copies: Sequence[Path], *, whole_suite: bool
) -> Iterator[Outcome]:
    """Try the faults, in each copy one at a time, and give each outcome as soon as it is known."""
    free: SimpleQueue[Path] = SimpleQueue()
    for copy in copies:
        free.put(copy)

    def one(fault: Fault) -> Outcome:
        copy = free.get()
        try:
            return tried(fault, copy, whole_suite=whole_suite)
        finally:
            free.put(copy)

    with ThreadPoolExecutor(len(copies)) as pool:
        for done in as_completed([pool.submit(one, fault) for fault in faults]):
            yield done.result()


def report(outcome: Outcome, done: int, count: int, begun: float) -> None:
    """Print the outcome of one fault, and how long the others will take."""
    left = (time.monotonic() - begun) / done * (count - done) / 60
    said = f"{outcome.verdict:6}  {outcome.fault.name:30} {outcome.seconds:6.1f} s  {outcome.why}"
    print(f"{done:3} of {count}  {said}  ({left:.0f} min left)", flush=True)


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [fault.name for fault in FAULTS]
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=names, default=names)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="faults at a time")
    parser.add_argument("--whole-suite", action="store_true", help="run all tests on a missed one")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    options = arguments(given)
    faults = [fault for fault in FAULTS if fault.name in options.only]
    for fault in faults:
        check(fault)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        places = [Path(folder) / str(job) for job in range(min(options.jobs, len(faults)))]
        copies = [make_copy(place) for place in places]
        tests = sorted({test for fault in faults for test in fault.tests.split()})
        several = ("-n", str(options.jobs))
        code, why = run_tests(copies[0], tests, *several, longest=LONGEST_SUITE)
        if code != PASSED:
            print(f"Without a fault the tests do not pass: {why}", file=sys.stderr)
            return 1
        print(f"Without a fault the tests pass: {time.monotonic() - begun:.0f} s", flush=True)
        begun, found = time.monotonic(), []
        for outcome in outcomes(faults, copies, whole_suite=options.whole_suite):
            found.append(outcome)
            report(outcome, len(found), len(faults), begun)
    missed = [outcome.fault.name for outcome in found if outcome.verdict != CAUGHT]
    print(f"{len(found) - len(missed)} of {len(found)} caught", *missed, sep="\nnot caught: ")
    return 1 if missed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except MovedError as error:
        sys.exit(f"tools/faults.py: {error}")
