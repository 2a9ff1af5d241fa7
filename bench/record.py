"""Run a benchmark and keep what it printed, with command, machine and date, under results/.

python bench/record.py hold python bench/hold.py        # writes results/hold.json
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import torch

from snip.common.files import write_text
from snip.masks import versions
from snip.runs.result import environment

RESULTS = Path(__file__).parent.parent / "results"


def main() -> None:
    name, *command = sys.argv[1:]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    print(done.stdout, end="")
    settings = {k: v for k, v in os.environ.items() if k in ("OMP_NUM_THREADS", "SNIP_KERNELS")}
    record = {
        "command": " ".join(command),
        "environment": settings,
        "output": done.stdout.splitlines(),
        "versions": versions(),
        **environment(torch.device("cpu")),
    }
    write_text(RESULTS / f"{name}.json", json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
