"""The one top-k over processes: scores stay where they are, and the masks are those of one."""

from unittest import mock

import pytest
import torch
import torch.distributed as dist
from distributed import one_process, sent_bytes
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import found_in_processes

from snip.common.errors import InputError
from snip.selection import topk
from snip.selection.select import select
from snip.selection.topk import keep_top

PROCESSES = 4
# Few different values, so that ties lie on both sides of a border between processes.
VALUES = [0.0, -0.0, 1e-45, 0.5, 0.75, 1.0, 1e30, -1.0]


def split(tensor):
    """The tensor, the same in every process, as rows of several processes."""
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    return distribute_tensor(tensor, init_device_mesh("cpu", (dist.get_world_size(),)), [Shard(0)])


def cases():
    """Scores with a budget: spread, rounded so that many tie, all equal, in float64, by cost."""
    torch.manual_seed(0)
    spread = {"a": torch.rand(9, 7), "b": torch.rand(3), "c": torch.randn(4, 5, 2)}
    rounded = {name: (score * 4).round() for name, score in spread.items()}
    costs = {"a": 2, "b": 1, "c": 5}
    yield "spread", spread, {"sparsity": 0.7}
    yield "rounded", rounded, {"sparsity": 0.5}
    yield "equal", {n: torch.ones_like(s) for n, s in spread.items()}, {"sparsity": 0.6}
    yield "double", {n: s.double() for n, s in spread.items()}, {"sparsity": 0.9}
    yield "costs", rounded, {"sparsity": 0.5, "costs": costs}
    yield "floor", rounded, {"sparsity": 0.9, "floor": 2}
    yield "layer", rounded, {"sparsity": 0.5, "scope": "layer"}
    yield "erk", spread, {"sparsity": 0.5, "scope": "erk"}
    within = {name: torch.rand(score.shape) < 0.6 for name, score in rounded.items()}
    yield "within", rounded, {"sparsity": 0.7, "within": within}


@st.composite
def races(draw):
    rows = draw(st.lists(st.integers(0, 9), min_size=1, max_size=3))
    values = st.sampled_from(VALUES) | st.floats(-4, 4, width=16)
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
    scores = {
        f"layer{i}": torch.tensor(draw(st.lists(values, min_size=2 * n, max_size=2 * n)))
        .to(dtype)
        .reshape(n, 2)
        for i, n in enumerate(rows)
    }
    within = {}
    if draw(st.booleans()):
        flags = draw(st.lists(st.booleans(), min_size=2 * rows[0], max_size=2 * rows[0]))
        within["layer0"] = torch.tensor(flags, dtype=torch.bool).reshape(rows[0], 2)
    costs = {name: draw(st.integers(1, 3)) for name in scores} if draw(st.booleans()) else None
    return scores, draw(st.integers(0, 40)), within, costs


# The same examples in every process, which go through them in step.
@settings(derandomize=True, database=None, deadline=None, max_examples=40)
@given(race=races())
def check_any_race(race):
    scores, kept, within, costs = race
    alone = keep_top(scores, kept, within, costs)
    many = keep_top({name: split(score) for name, score in scores.items()}, kept, within, costs)
    assert all(torch.equal(mask, many[name]) for name, mask in alone.items())


def traffic(size):
    """Bytes that a process hands to others while they select of so many scores, by kind."""
    scores = {"w": split(torch.rand(size, generator=torch.Generator().manual_seed(1)))}
    with sent_bytes() as sent:
        keep_top(scores, size // 10)
    return sent


def disagreements(rank):
    """What every process is told where one of them selects by something else."""
    torch.manual_seed(0)
    scores = {"w": split(torch.rand(8, 4)), "b": split(torch.rand(9))}
    flags = {"w": torch.ones(8, 4, dtype=torch.bool)}
    flags["w"][0, 0] = rank != 1

    def with_a_threshold_of_its_own():
        found = 0.5 + 0.1 * (rank == 1), 1
        with mock.patch.object(topk, "count_digits", return_value=found):
            keep_top(scores, 20)

    ways = {
        "kept": lambda: keep_top(scores, 20 + (rank == 1)),
        "all kept": lambda: keep_top(scores, 41 if rank == 1 else 20),
        "within": lambda: keep_top(scores, 20, flags),
        "costs": lambda: keep_top(scores, 20, costs={"w": 1 + (rank == 1), "b": 1}),
        "threshold": with_a_threshold_of_its_own,
    }
    found = {}
    for name, way in ways.items():
        with pytest.raises(InputError) as caught:
            way()
        found[name] = str(caught.value)
    return found


def select_in_a_process(rank, count, folder):
    found = {}
    for name, scores, asked in cases():
        masks = select({n: split(score) for n, score in scores.items()}, **asked)
        found[name] = dict(masks.items())
    check_any_race()
    found["traffic"] = [traffic(size) for size in (16_000, 160_000, 1_600_000)]
    found["disagreements"] = disagreements(rank)
    bad = {"a": torch.rand(8, 4), "b": torch.rand(3)}
    bad["b"][2] = torch.nan  # which one process alone has
    try:
        select({name: split(score) for name, score in bad.items()}, sparsity=0.5)
    except InputError as error:
        found["nan"] = str(error)
    try:
        select({"a": split(bad["a"]), "b": torch.rand(3)}, sparsity=0.5)
    except InputError as error:
        found["mixed"] = str(error)
    torch.save(found, f"{folder}/{rank}.pt")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each of four processes selected; started once."""
    folder = tmp_path_factory.mktemp("selection")
    return found_in_processes(select_in_a_process, folder, PROCESSES)


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case[0])
def test_four_processes_select_what_one_does(case, found):
    name, scores, asked = case
    alone = select(scores, **asked)
    assert 0 < alone.kept < alone.total
    for theirs in found:
        assert theirs[name].keys() == alone.keys()
        assert all(torch.equal(theirs[name][key], mask) for key, mask in alone.items())


def test_processes_that_select_by_something_else_are_told(found):
    for theirs in found:
        said = theirs["disagreements"]
        assert all("the processes differ" in sentence for sentence in said.values())
        assert "kept 21 in process 1, 20 in process 0" in said["kept"]
        assert "kept 41 in process 1, 20 in process 0" in said["all kept"]
        assert "within" in said["within"]
        assert "of 73 in process 1, 41 in process 0" in said["costs"]
        assert "threshold" in said["threshold"]


def test_the_counts_that_are_sent_do_not_grow_with_the_scores(found):
    for theirs in found:
        counts = [sent["counts"] for sent in theirs["traffic"]]
        # Two passes of 65,536 counts of 8 bytes, how many are above, who has the tie, and what
        # they must agree on.
        assert max(counts) - min(counts) < 64
        assert 2 * 8 * 65_536 < min(counts) < 2 * 8 * 65_536 + 1000
        # The masks that every process ends with are a bit per score, of its own part.
        assert [sent["masks"] for sent in theirs["traffic"]] == [500, 5_000, 50_000]


def test_a_score_that_one_process_has_is_refused_by_all(found):
    for theirs in found:
        assert "'b' contain NaN" in theirs["nan"]
        assert (
            "some of these tensors are sharded over processes and others are not" in theirs["mixed"]
        )


@pytest.mark.parametrize(("layers", "equal"), [(10, False), (1, True)])
def test_the_benchmark_finds_the_threshold_of_numpy(layers, equal, capsys):
    one_process(50_000, layers, equal)  # which compares the two
    assert "numpy.partition" in capsys.readouterr().out
