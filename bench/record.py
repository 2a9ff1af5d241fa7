"""Run a benchmark and keep what it printed, with command, machine and date, under results/.

python bench/record.py hold python bench/hold.py        # writes results/hold.json
"""

from __future__ import annotations

import os
import resource
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from snip.common.files import write_json
from snip.masks import versions
from snip.runs.result import environment

RESULTS = Path(__file__).parent.parent / "results"


# Timings depend on these, by their names in /proc/cpuinfo.
INSTRUCTIONS = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx512_bf16": "AVX-512 BF16",
    "amx_bf16": "AMX BF16",
}


def surroundings() -> dict[str, Any]:
    """When, where and with what something was measured."""
    settings = {k: v for k, v in os.environ.items() if k in ("OMP_NUM_THREADS", "SNIP_KERNELS")}
    around = {"environment": settings, "versions": versions(), **environment(torch.device("cpu"))}
    around["machine"] |= {"instructions": instructions(Path("/proc/cpuinfo"))}
    return {**around, "cores_taken_by_others": LOAD.others()}


def instructions(cpuinfo: Path) -> list[str] | None:
    """Vector instructions of the machine; None if the system does not list them."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return None
    flags = next((line.split() for line in lines if line.startswith("flags")), None)
    return None if flags is None else [name for flag, name in INSTRUCTIONS.items() if flag in flags]


class Load:
    """CPU time that other processes, or other guests of the host, took since this was made."""

    def __init__(self, stat: Path = Path("/proc/stat")) -> None:
        self._stat = stat
        self._begun = self._now()

    def others(self) -> float | None:
        """Mean number of cores that they kept busy; None if the system does not tell."""
        now = self._now()
        if self._begun is None or now is None:
            return None
        elapsed, all_busy, own = (b - a for a, b in zip(self._begun, now, strict=True))
        return round(max(0.0, all_busy - own) / elapsed, 2) if elapsed > 0 else None

    def _now(self) -> tuple[float, float, float] | None:
        """Seconds of the clock, of all cores, and of this process and the children that ended."""
        try:
            ticks = [int(word) for word in self._stat.read_text().split("\n")[0].split()[1:9]]
        except OSError:
            return None
        user, nice, system, _idle, _iowait, irq, softirq, steal = ticks
        busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
        usages = [
            resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        ]
        return time.monotonic(), busy, sum(usage.ru_utime + usage.ru_stime for usage in usages)


LOAD = Load()  # since this module was imported, before anything is measured


def keep(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write the rows of this command with its own line, the machine and the date."""
    command = shlex.join(["python", f"bench/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    write_json(path, {"command": command, "rows": rows, **surroundings()})


def main() -> None:
    name, *command = sys.argv[1:]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    print(done.stdout, end="")
    record = {"command": " ".join(command), "output": done.stdout.splitlines(), **surroundings()}
    write_json(RESULTS / f"{name}.json", record)


if __name__ == "__main__":
    main()
