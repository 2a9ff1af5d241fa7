"""The one top-k against a stable sort, whichever way its threshold is found."""

from fractions import Fraction
from itertools import groupby
from unittest import mock

import pytest
import torch
from distributed import peak
from hypothesis import given
from hypothesis import strategies as st
from topk import main as benchmark

from snip.selection import topk
from snip.selection.topk import keep_top

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
# Few different values, so that ties are common; denormals, both zeros and infinities among them.
VALUES = [0.0, -0.0, 1e-45, -1e-45, 1e-40, 6e-8, 0.5, 0.75, 1.0, 1e30, -1.0, 1e400, -1e400]
PIECES = {"PIECE_ELEMENTS": 7}
MANY = PIECES | {"MAX_COPIED_ELEMENTS": 0, "SAMPLE_STRIDE": 3}  # for tensors of a few elements
WAYS = {
    "a flat copy": PIECES,
    "a sampled bound": MANY | {"MAX_COPIED_SHARE": 0.5, "SAMPLE_DEVIATIONS": 1.0},
    "a bound that is often wrong": MANY | {"MAX_COPIED_SHARE": 1.0, "SAMPLE_DEVIATIONS": 0.0},
    "counted digits": MANY | {"MAX_COPIED_SHARE": 0.0},
}
all_ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def limits(values):
    """Other values for the module's constants inside a block."""
    return mock.patch.multiple(topk, **values)


def digits_counted():
    """Records whether digits are counted inside a block."""
    return mock.patch.object(topk, "count_digits", wraps=topk.count_digits)


def sorted_masks(scores, kept, within=None, costs=None):
    """What a stable sort keeps: the first that are equal, and of these those that still fit."""
    rows = [
        (float(value), name, place)
        for name, score in scores.items()
        for place, value in enumerate(score.flatten())
        if name not in (within or {}) or within[name].flatten()[place]
    ]
    masks = {name: torch.zeros(score.numel(), dtype=torch.bool) for name, score in scores.items()}
    rows.sort(key=lambda row: -row[0])
    for _, equals in groupby(rows, key=lambda row: row[0]):
        full = False
        for _, name, place in equals:
            price = costs[name] if costs else 1
            masks[name][place] = price <= kept
            full |= price > kept
            kept -= price if price <= kept else 0
        if full:
            break
    return {name: mask.reshape(scores[name].shape) for name, mask in masks.items()}


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, mask in expected.items():
        assert torch.equal(found[name], mask)


def joined(masks):
    return torch.cat([mask.flatten() for mask in masks.values()])


@st.composite
def contests(draw):
    """Scores of several tensors, a budget, where they may be kept, and what they cost."""
    sizes = draw(st.lists(st.integers(0, 40), min_size=1, max_size=4))
    dtypes = draw(st.lists(st.sampled_from(DTYPES), min_size=1, max_size=2))
    elements = st.sampled_from(VALUES) | st.floats(-4, 4, width=16)
    scores, within = {}, {}
    for i, size in enumerate(sizes):
        values = torch.tensor(draw(st.lists(elements, min_size=size, max_size=size))).double()
        flags = torch.tensor(draw(st.lists(st.booleans(), min_size=size, max_size=size))).bool()
        if size % 2 == 0 and draw(st.booleans()):  # in memory by columns
            values, flags = values.view(2, -1).t(), flags.view(2, -1).t()
        scores[f"layer{i}"] = values.to(dtypes[i % len(dtypes)])
        if draw(st.booleans()):
            within[f"layer{i}"] = flags
    prices = st.integers(1, 3) | st.fractions(Fraction(1, 3), 3, max_denominator=7)
    costs = draw(st.none() | st.fixed_dictionaries(dict.fromkeys(scores, prices)))
    total = sum(
        (costs[n] if costs else 1) * (int(within[n].sum()) if n in within else s.numel())
        for n, s in scores.items()
    )
    kept = draw(st.integers(0, int(total) + 1))
    if costs and draw(st.booleans()):
        kept = Fraction(kept) + draw(st.fractions(0, 1, max_denominator=7))
    return scores, kept, within, costs


@all_ways
@given(contest=contests())
def test_any_contest_ends_as_a_stable_sort(way, contest):
    with limits(way):
        assert_same(keep_top(*contest), sorted_masks(*contest))


@all_ways
@pytest.mark.parametrize("dtype", DTYPES)
def test_special_values_and_their_ties_at_every_budget(way, dtype):
    special = torch.tensor(VALUES * 2, dtype=torch.float64).to(dtype)
    scores = {
        "a": special,
        "none": special[:0],
        "b": special.flip(0).view(2, -1),
        "one": special[4],
    }
    within = {"b": torch.arange(special.numel()).view(2, -1) % 3 > 0}
    for kept in range(sum(score.numel() for score in scores.values()) + 2):
        with limits(way):
            assert_same(keep_top(scores, kept), sorted_masks(scores, kept))
            assert_same(keep_top(scores, kept, within), sorted_masks(scores, kept, within))


def test_each_way_is_taken_in_these_tests():
    """So that the tests above mean what they say."""
    torch.manual_seed(0)
    spread, equal, misleading = torch.rand(300), torch.ones(300), torch.rand(300)
    misleading[::3] += 1  # the elements of the sample
    counted = {
        "a flat copy": (False, False, False),
        "a sampled bound": (False, True, True),
        "counted digits": (True, True, True),
    }
    for way, expected in counted.items():
        for score, digits in zip((spread, equal, misleading), expected, strict=True):
            with limits(WAYS[way]), digits_counted() as count:
                keep_top({"w": score}, 60)
            assert count.called == digits, way


@pytest.mark.parametrize("kind", ["spread", "rounded", "constant", "mostly zero"])
def test_a_large_contest_ends_as_a_stable_sort(kind):
    torch.manual_seed(0)
    scores = {"a": torch.rand(1_000_000), "b": torch.rand(500_000).mul_(3), "c": torch.rand(3)}
    for score in scores.values():
        if kind == "rounded":
            score.mul_(50).round_()
        elif kind == "constant":
            score.fill_(0.5)
        elif kind == "mostly zero":
            score.mul_(score > 0.9)
    order = joined(scores).argsort(descending=True, stable=True)
    for kept in (1, 1000, 300_000, 1_400_000):
        expected = torch.zeros(len(order), dtype=torch.bool)
        expected[order[:kept]] = True
        assert torch.equal(joined(keep_top(scores, kept)), expected)
        with limits({"MAX_COPIED_ELEMENTS": 0}), digits_counted() as count:
            assert torch.equal(joined(keep_top(scores, kept)), expected)
        few = kept <= topk.MAX_COPIED_SHARE * len(order)
        assert count.called == (not few or kind == "constant"), kept


@pytest.mark.parametrize("copied", [0, topk.MAX_COPIED_ELEMENTS])
@pytest.mark.parametrize("recording", [False, True])
def test_scores_may_belong_to_a_graph(recording, copied):
    scores = {"a": torch.rand(1200, 1000)}
    expected = keep_top(scores, 1000)["a"]
    scores["a"].requires_grad_()
    with torch.set_grad_enabled(recording), limits({"MAX_COPIED_ELEMENTS": copied}):
        assert torch.equal(keep_top(scores, 1000)["a"], expected)


@pytest.mark.parametrize("within", [False, True])
def test_the_number_of_threads_changes_nothing(within):
    torch.manual_seed(0)
    scores = {"a": torch.rand(1500, 1000).t(), "b": torch.rand(700_001).mul_(40).round_()}
    allowed = {"a": torch.rand(1000, 1500) < 0.3} if within else {}
    competing = dict(scores)
    if within:
        competing["a"] = scores["a"].masked_fill(~allowed["a"], -1)
    expected = torch.zeros(2_200_001, dtype=torch.bool)
    expected[joined(competing).argsort(descending=True, stable=True)[:90_000]] = True
    threads = torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            with limits({"MAX_COPIED_ELEMENTS": 0}):
                assert torch.equal(joined(keep_top(scores, 90_000, allowed)), expected)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("kept", [900_000, 4_000_000])
def test_a_sample_that_meets_only_what_is_pruned_does_not_decide(kept):
    torch.manual_seed(0)
    scores = {"w": torch.rand(17_000, topk.SAMPLE_STRIDE)}
    within = {"w": torch.ones(17_000, topk.SAMPLE_STRIDE, dtype=torch.bool)}
    within["w"][:, 0] = False  # whose elements are all that the sample has
    found = keep_top(scores, kept, within)["w"]
    flat = scores["w"].masked_fill(~within["w"], -1).flatten()
    expected = torch.zeros(len(flat), dtype=torch.bool)
    expected[flat.argsort(descending=True, stable=True)[:kept]] = True
    assert torch.equal(found.flatten(), expected)


@pytest.mark.parametrize("equal", [True, False])
def test_many_scores_are_never_copied_whole(equal):
    size = topk.MAX_COPIED_ELEMENTS + 1
    scores = {"w": torch.ones(size) if equal else torch.rand(size)}
    kept = size // 2 if equal else int(size * topk.MAX_COPIED_SHARE * 0.9)
    keep_top(scores, kept)  # imports, threads
    with peak() as extra:
        mask = keep_top(scores, kept)["w"]
    assert int(mask.count_nonzero()) == kept
    assert not equal or mask[:kept].all()
    # The mask has a byte per score; a copy of the scores would have four, a list of the places
    # of ties eight.
    assert extra[0] < 4 * len(mask)


def test_the_benchmark_takes_several_sizes(capsys):
    benchmark(["--sizes", "2e4", "3e4", "--kept", "0.1", "--rounds", "1"])
    shown = capsys.readouterr().out
    assert "10% of 20,000 scores" in shown
    assert "10% of 30,000 scores" in shown
    assert shown.count("x ours") == 6
