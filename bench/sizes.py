"""Files of pruned networks: the compact one beside the dense one, and the ONNX of the shrunk model.

python bench/sizes.py
"""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path

import torch
from cases import CASES, Case, pruned

import snip


def sizes(case: Case, folder: Path) -> tuple[int, int, int]:
    """Bytes of the dense state_dict, the compact file and the shrunk model in ONNX."""
    model, (images, _), _ = pruned(case, 4)
    model.eval()
    dense, small, onnx = (folder / name for name in ("dense.pt", "small.snip", "shrunk.onnx"))
    torch.save(model.state_dict(), dense)
    snip.compact.save(model, small)
    snip.export_onnx(snip.shrink(model, images), images, onnx)
    return dense.stat().st_size, small.stat().st_size, onnx.stat().st_size


def main() -> None:
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            dense, small, onnx = sizes(case, Path(folder))
            print(
                f"  {case.model:14} {case.sparsity:.0%}: dense {dense / 1e3:,.0f} kB, compact "
                f"{small / 1e3:,.1f} kB ({dense / small:.0f}x smaller), shrunk ONNX "
                f"{onnx / 1e3:,.0f} kB ({dense / onnx:.1f}x smaller)",
                flush=True,
            )


if __name__ == "__main__":
    main()
