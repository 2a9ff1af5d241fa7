"""The benchmarks' clock."""

import importlib.util
from pathlib import Path

SPEC = importlib.util.spec_from_file_location(
    "timing", Path(__file__).parents[1] / "bench" / "timing.py"
)
timing = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(timing)


def test_each_rival_starts_from_the_same_state() -> None:
    """What one turn does, such as pruning, the next must not find done."""
    state, found = [0], {"one": [], "two": []}

    def rival(name: str):
        def work() -> None:
            found[name].append(state[0])
            state[0] += 1

        return work

    times = timing.best_times(
        {name: rival(name) for name in found}, rounds=2, setup=lambda: state.__setitem__(0, 0)
    )
    assert found == {"one": [0, 0, 0], "two": [0, 0, 0]}
    assert times.keys() == found.keys()
