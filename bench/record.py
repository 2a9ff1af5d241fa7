"""Run a benchmark and keep what it printed, with command, machine and date, under results/.

python bench/record.py hold python bench/hold.py        # writes results/hold.json
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from snip.common.files import write_json
from snip.masks import versions
from snip.runs.result import environment

RESULTS = Path(__file__).parent.parent / "results"


def surroundings() -> dict[str, Any]:
    """When, where and with what something was measured."""
    settings = {k: v for k, v in os.environ.items() if k in ("OMP_NUM_THREADS", "SNIP_KERNELS")}
    return {"environment": settings, "versions": versions(), **environment(torch.device("cpu"))}


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
