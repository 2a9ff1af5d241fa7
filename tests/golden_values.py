"""Golden values: masks, weights, names and files that no later version may change.

    python tests/golden_values.py            # print what differs from tests/golden/*.json
    python tests/golden_values.py --write    # replace these files; CONTRIBUTING.md says when
    python tests/golden_values.py --files    # add a folder with the files of this version

Float sums depend on the processor, and with them the connection that comes last, so that each
section is computed in a process of its own with the settings of PINNED: the same masks on every
x86-64 processor, the same weights to 1e-6.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from golden_files import FOLDER, files, write_files
from golden_masks import Rows, Value, masks
from golden_runs import data_folder, dry_runs, experiments, training

import snip

PINNED = {
    "OMP_NUM_THREADS": "1",  # sums in one order
    "ATEN_CPU_CAPABILITY": "default",  # torch's own loops without AVX
    "ONEDNN_MAX_CPU_ISA": "SSE41",  # convolutions
    "MKL_CBWR": "COMPATIBLE",  # products of matrices, on processors of every maker
    "SNIP_NO_KERNELS": "1",  # dense: which layers run sparse is decided by the clock
    "COLUMNS": "200",  # tables in lines that are not broken
}
TOLERANCE = 1e-6
SECTIONS: dict[str, Callable[[], Rows]] = {
    "masks": masks,
    "training": training,
    "dry_runs": dry_runs,
    "experiments": experiments,
    "files": files,
}


def outcome(make: Callable[[], Value]) -> Value:
    """Value of a row, or the kind of error by which it is refused."""
    try:
        return make()
    except snip.InputError as error:
        return {"refused": type(error).__name__}
    except Exception as error:
        return {"failed": repr(error)}


def compute_here(section: str, only: str = "") -> dict[str, Value]:
    """Values of a section's rows, or of those with a text in their names."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found = {n: outcome(make) for n, make in SECTIONS[section]().items() if only in n}
    shutil.rmtree(data_folder())
    data_folder.cache_clear()
    return found


def call_pinned(*arguments: str) -> None:
    """Run this file in a process with the settings of PINNED."""
    kept = {k: v for k, v in os.environ.items() if k not in ("SNIP_DATA", "SNIP_KERNELS")}
    kept["PYTHONPATH"] = str(Path(snip.__file__).parents[1])  # the same Snip as here
    with tempfile.TemporaryDirectory() as scratch:
        environment = kept | PINNED | {"SNIP_CACHE": scratch}
        subprocess.run([sys.executable, __file__, *arguments], env=environment, check=True)


def compute(section: str, path: Path, only: str = "") -> None:
    """Write a section's values to a file."""
    call_pinned("--here", section, str(path.resolve()), "--only", only)


def text_of(values: Mapping[str, Value]) -> str:
    """JSON with nine digits of each number, and with small lists and objects in one line."""
    rounded = json.loads(json.dumps(values), parse_float=lambda text: float(f"{float(text):.9g}"))
    text = json.dumps(rounded, indent=1, sort_keys=True, ensure_ascii=False)
    for innermost in (r"\[\n[^\[\]{}]*\n *\]", r"\{\n[^{}]*\n *\}"):
        text = re.sub(innermost, in_one_line, text)
    return text + "\n"


def in_one_line(found: re.Match[str]) -> str:
    """Text of JSON in one line, unless that is too long to read."""
    line = re.sub(r" *\n *", " ", found[0])
    return line if len(line) < 300 else found[0]


def made_with() -> dict[str, str]:
    """Release of torch and kind of machine, on which the last bits of sums depend."""
    return {"torch": torch.__version__.partition("+")[0], "machine": platform.machine()}


def read(section: str) -> dict[str, Value]:
    """Golden values of a section."""
    path = FOLDER / f"{section}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


# The sum of many numbers is as exact as they are large, and so is a small one of them.
SCALES = {"sum": "absolute", "some": "rms"}


def is_close(golden: Value, found: Value, scale: float = 0.0) -> bool:
    """Compare values: floats to 1e-6 of their size or of `scale`, all else exactly."""
    if isinstance(golden, dict) and isinstance(found, dict):
        return golden.keys() == found.keys() and all(
            is_close(golden[key], found[key], golden.get(SCALES.get(key, ""), 0.0))
            for key in golden
        )
    if isinstance(golden, list) and isinstance(found, list):
        return len(golden) == len(found) and all(
            is_close(one, other, scale) for one, other in zip(golden, found, strict=True)
        )
    if isinstance(golden, float) and isinstance(found, float):
        return abs(golden - found) <= TOLERANCE * max(abs(golden), scale)
    return bool(golden == found)


def differing(section: str, found: Mapping[str, Value]) -> list[str]:
    """Names of the rows that are not as they were, or are not in both."""
    golden = read(section)
    return [
        name
        for name in dict.fromkeys([*golden, *found])
        if name not in golden or name not in found or not is_close(golden[name], found[name])
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="replace the golden values")
    parser.add_argument("--files", action="store_true", help="add the files of this version")
    parser.add_argument("--only", default="", metavar="TEXT", help="rows with this text")
    parser.add_argument("--here", nargs=2, metavar=("SECTION", "FILE"), help="compute one section")
    asked = parser.parse_args()
    if asked.here:
        section, path = asked.here
        Path(path).write_text(text_of(compute_here(section, asked.only)), encoding="utf-8")
        return 0
    if asked.files and PINNED.items() <= os.environ.items():
        write_files(FOLDER / f"files-{snip.__version__}")
        return 0
    if asked.files:
        call_pinned("--files")
        return 0
    differ = 0
    for section, rows in SECTIONS.items():
        if not any(asked.only in name for name in rows()):
            continue
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "values.json"
            compute(section, path, asked.only)
            found = json.loads(path.read_text(encoding="utf-8"))
        names = [name for name in differing(section, found) if asked.only in name]
        differ += len(names)
        sys.stdout.write(f"{section}: {len(found)} rows, {len(names)} differ\n")
        sys.stdout.writelines(f"  {name}: {found.get(name, 'gone')}\n" for name in names)
        if any("failed" in value for value in found.values()):
            return 1
        if asked.write:
            values = {n: v for n, v in read(section).items() if asked.only not in n} | found
            (FOLDER / f"{section}.json").write_text(text_of(values), encoding="utf-8")
    if asked.write:
        (FOLDER / "made_with.json").write_text(text_of(made_with()), encoding="utf-8")
    return int(bool(differ) and not asked.write)


if __name__ == "__main__":
    sys.exit(main())
