"""The choice of tiles: any tiling gives the same answers, and its prices can be fitted again."""

import json
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

from snip.engine import kernels
from snip.engine.kernels.conv import run_product
from snip.engine.kernels.library import vector_floats
from snip.engine.kernels.plan import ConvPlan
from snip.engine.kernels.tiling import FORWARD, Tiling, Workload, candidates, counts, cycles

if not kernels.available():
    pytest.skip(str(kernels.reason()), allow_module_level=True)

BENCH = Path(__file__).parents[1] / "bench"
sys.path.append(str(BENCH))
fit_tiling = import_module("fit_tiling")


def test_every_tiling_gives_the_same_outputs() -> None:
    index = kernels.ConvIndex(torch.rand(6, 5, 3, 3) < 0.4, (5, 9, 7), padding=(1, 1))
    values, x = torch.randn(index.kept), kernels.rows_to_blocks(torch.randn(17, 5, 9, 7))
    want = kernels.conv_forward(index, values, x, 17)
    taps = index.forward_plan.taps
    for tiling in set(candidates(index.forward_plan.work)):
        plan = ConvPlan(taps, vector_floats(), FORWARD, tiling=tiling)
        assert plan.tiling == tiling
        assert torch.allclose(run_product(plan, values, x, 17), want, atol=1e-5)


def test_counts_of_a_layer_done_by_hand() -> None:
    """8 channels of 4 x 4 in two chunks of 4, in two tiles of 2 rows; vectors of 8 floats."""
    work = Workload(8, (4, 4), (1, 1), (3, 3), channels=8, outs=1, kept=10**6, vector=8)
    found = counts(work, Tiling(2, 4, 4), held=8)
    assert found["near"] + found["far"] + found["beyond"] == 10**6 * 16
    assert found["weight"] == 2 * 10**6  # 2 rows of 4 vectors fill the registers once per tile
    assert found["passed"] == 16  # with so many weights, the output has some in both chunks
    assert found["segment"] == 2 * 2
    assert found["out_row"] == 2 * 2
    assert found["in_row"] == 2 * 8 * 4  # a tile of 2 rows needs 4 rows of input
    assert found["packed"] == 2 * 8 * 4 * 6
    costs = FORWARD.__class__(8, *range(1, 11))
    assert cycles(work, Tiling(2, 4, 4), costs) == sum(
        price * found[name] for price, name in zip(range(1, 11), found, strict=True)
    )


def test_prices_are_found_again_and_never_negative() -> None:
    rng = np.random.default_rng(0)
    work = rng.uniform(1, 10, (200, 4))
    prices = np.array([2.0, 0.0, 0.5, 1.0])
    table = work / (work @ prices)[:, None]  # counts over seconds: each row times the prices is 1
    assert np.allclose(fit_tiling.nonnegative(table), prices, atol=1e-9)
    noisy = work / (work @ prices * rng.uniform(0.8, 1.2, 200))[:, None]
    assert fit_tiling.nonnegative(noisy).min() >= 0


def test_timing_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fit_tiling, "LAYERS", ((3, 4, 6, 3, 1),))
    monkeypatch.setattr(fit_tiling, "DENSITIES", (0.5,))
    monkeypatch.setattr(fit_tiling, "TILINGS", 3)
    file = tmp_path / "tiling.json"
    arguments = ["fit_tiling.py", "--each", "0", "--file", str(file)]
    monkeypatch.setattr(sys, "argv", arguments)
    fit_tiling.main()
    first = json.loads(file.read_text())
    assert len(first["timings"]) == 6
    assert {"machine", "date", "kernels"} <= first.keys()
    assert all(timing["seconds"] > 0 for timing in first["timings"])
    fit_tiling.main()
    assert json.loads(file.read_text())["timings"] == first["timings"]
    assert capsys.readouterr().out.count("WEIGHTS = Costs(") == 2
