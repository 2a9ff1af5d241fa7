"""torchvision beside a torch that its library of operators fits, and beside one that it does not.

Stand-ins for torchvision do to torch what the real one does in each case.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench"
LOADS_ITS_LIBRARY = """
import torch
library = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""
ADDS_RULES = """
import torch
for name in ("nms", "qnms"):
    torch.library.register_fake(f"torchvision::{name}")(lambda dets, scores, threshold: dets)
"""
USE = "import torchvision_names, torchvision, torch; print(torch.ops.torchvision.qnms.default)"


@pytest.mark.parametrize(
    "torchvision", [LOADS_ITS_LIBRARY + ADDS_RULES, ADDS_RULES], ids=["fits", "does not fit"]
)
def test_torchvision_is_imported_with_its_operators(torchvision: str, tmp_path: Path) -> None:
    (tmp_path / "torchvision.py").write_text(torchvision)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(BENCH)])}
    command = [sys.executable, "-c", USE]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "torchvision.qnms.default\n"
