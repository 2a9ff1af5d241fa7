"""The timing loop: ways take turns, each from the same start, and there is only one such loop."""

from pathlib import Path

from snip.common.timing import best_time, best_times

ROOT = Path(__file__).parents[1]
# The trainer counts its own seconds while it works; it repeats nothing.
CLOCKS = {"src/snip/common/timing.py", "src/snip/training/session.py"}


def test_each_rival_starts_from_the_same_state() -> None:
    """What one turn does, such as pruning, the next must not find done."""
    state, found = [0], {"one": [], "two": []}

    def rival(name: str):
        def work() -> None:
            found[name].append(state[0])
            state[0] += 1

        return work

    times = best_times(
        {name: rival(name) for name in found}, rounds=2, setup=lambda: state.__setitem__(0, 0)
    )
    assert found == {"one": [0, 0, 0], "two": [0, 0, 0]}
    assert times.keys() == found.keys()


def test_ways_take_turns() -> None:
    order: list[str] = []
    ways = {name: lambda name=name: order.append(name) for name in "abc"}
    best = best_times(ways, rounds=3, seconds=0)
    assert order == list("abc") * 4  # one turn of each warms up
    assert best.keys() == ways.keys()
    assert all(0 <= value < float("inf") for value in best.values())


def test_a_single_way_is_timed_as_often_as_asked() -> None:
    calls: list[None] = []
    assert best_time(lambda: calls.append(None), rounds=5, warmup=0) >= 0
    assert len(calls) == 5


def test_nobody_writes_a_second_timing_loop() -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for folder in ("src/snip", "bench")
        for path in (ROOT / folder).rglob("*.py")
        if "perf_counter" in path.read_text()
    }
    assert found == CLOCKS
