"""One row of a speed table: ways that agree on a network's outputs, timed in one run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from cases import Case
from torch import Tensor

from snip.common.timing import Work, best_times

DENSE = ("eager", "channels last", "compiled")
BFLOAT16 = ("autocast", "autocast in channels last", "bfloat16", "bfloat16 in channels last")
TOLERANCE = 1e-3  # of the largest output: batch norm magnifies rounding
LOWER_TOLERANCE = 0.1  # the same in bfloat16, whose rounding is 65,536 times as coarse
BURST = 0.1  # seconds of a turn, at least
SETTLED = 0.005  # seconds after which the idle threads of another way sleep


@dataclass
class Contest:
    """The ways that take part, and why the others do not."""

    expected: Tensor  # outputs of the masked dense network
    works: dict[str, Work] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)

    def enter(self, name: str, start: Callable[[], tuple[Tensor, Work]]) -> None:
        """Take part if the outputs are right and the work runs; ours has to."""
        tolerance = LOWER_TOLERANCE if name in BFLOAT16 else TOLERANCE
        try:
            outputs, work = start()
            off = float((outputs - self.expected).abs().max() / self.expected.abs().max())
            if not off < tolerance:
                raise ArithmeticError(f"its outputs are off by {off:.1e} of the largest")
            work()
            self.works[name] = work
        except Exception as error:  # whatever ails a rival is what its cell says
            if name == "ours":
                raise
            self.faults[name] = reason(error)

    def times(self, seconds: float) -> dict[str, float]:
        """Best seconds of each way, from turns that take about `seconds` per way."""
        once = best_times(self.works, rounds=1, warmup=0)
        rounds = max(3, min(100, int(seconds / max(*once.values(), BURST))))
        return best_times(self.works, rounds=rounds, warmup=0, setup=settle, burst=BURST)


def settle() -> None:
    """Runtimes with threads of their own leave them spinning for a moment."""
    time.sleep(SETTLED)


def reason(error: Exception) -> str:
    """Why a way has no time, in a few words."""
    if isinstance(error, ModuleNotFoundError):
        return f"not installed ({error.name})"
    verdict = "not supported" if isinstance(error, NotImplementedError) else "failed"
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"{verdict}: {lines[0]}"


def best_of(ways: Iterable[str], times: dict[str, float]) -> str | None:
    """The fastest of these ways, of those that were timed."""
    return min((way for way in ways if way in times), key=lambda way: times[way], default=None)


def record(
    case: Case, batch: int, times: dict[str, float], faults: dict[str, str], **facts: Any
) -> dict[str, Any]:
    """The row as data: seconds of all ways, and of the best dense torch in each precision."""
    best = {"dense float32": best_of(DENSE, times), "dense bfloat16": best_of(BFLOAT16, times)}
    return {
        "network": case.model,
        "sparsity": case.sparsity,
        "batch": batch,
        "ours": times["ours"],
        **{name: times[way] for name, way in best.items() if way is not None},
        "seconds": times,
        "faults": faults,
        **facts,
    }


def row(
    case: Case, batch: int, times: dict[str, float], faults: dict[str, str], remarks: Iterable[str]
) -> str:
    """Milliseconds of all ways, ratios over ours, remarks."""
    ours = times["ours"]
    rivals = [f"{way} {seconds * 1e3:.2f}" for way, seconds in times.items() if way != "ours"]
    best = best_of(DENSE, times) or ""
    tried = best if "compiled" in times else f"{best}; compiled was not tried"
    ratios = [f"best dense torch ({tried}) / ours {times[best] / ours:.2f}x"]
    lower = best_of(BFLOAT16, times)
    ratios += [
        f"{way} / ours {times[way] / ours:.2f}x"
        for way in ("sparseprop", "onnxruntime", "openvino", *([lower] if lower else []))
        if way in times
    ]
    parts = [
        f"ours {ours * 1e3:.2f} ms",
        ", ".join(rivals) + " ms",
        *(f"{way} {fault}" for way, fault in faults.items()),
        *ratios,
        *remarks,
    ]
    return f"  {case.model:14} {case.sparsity:.0%} batch {batch}: " + "; ".join(parts)
