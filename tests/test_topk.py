"""The one top-k: by a sample and by counting, against a plain stable sort."""

from unittest import mock

import pytest
import torch
from distributed import peak
from hypothesis import given
from hypothesis import strategies as st

from snip.selection import topk
from snip.selection.topk import keep_top

TINY = {
    "PIECE_ELEMENTS": 7,
    "MAX_COPIED_ELEMENTS": 0,
    "MAX_COPIED_SHARE": 0.5,
    "SAMPLE_STRIDE": 3,
    "SAMPLE_DEVIATIONS": 1.0,
}
# Few different values, so that ties are common; denormals and both zeros among them.
VALUES = [0.0, -0.0, 1e-45, 1e-40, 0.5, 0.75, 1.0, 1e30, -1.0, -1e-45]


@pytest.fixture
def _tiny(monkeypatch):
    """Samples, chunks and refusals in tensors of a few elements."""
    for name, value in TINY.items():
        monkeypatch.setattr(topk, name, value)


def by_counting(scores, kept, within=None):
    """What is kept if the digits of all scores are counted."""
    with mock.patch.object(topk, "kth_largest", topk.count_digits):
        return keep_top(scores, kept, within)


def sorted_masks(scores, kept, within):
    """What a stable sort of all allowed scores keeps."""
    rows = [
        (-float(value), at, name, place)
        for at, (name, score) in enumerate(scores.items())
        for place, value in enumerate(score.flatten())
        if name not in within or within[name].flatten()[place]
    ]
    masks = {name: torch.zeros(score.numel(), dtype=torch.bool) for name, score in scores.items()}
    for _, _, name, place in sorted(rows)[:kept]:
        masks[name][place] = True
    return {name: mask.reshape(scores[name].shape) for name, mask in masks.items()}


@st.composite
def races(draw):
    sizes = draw(st.lists(st.integers(0, 40), min_size=1, max_size=4))
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
    elements = st.sampled_from(VALUES) | st.floats(-4, 4, width=16)
    scores = {
        f"layer{i}": torch.tensor(draw(st.lists(elements, min_size=n, max_size=n)), dtype=dtype)
        for i, n in enumerate(sizes)
    }
    within = {}
    if draw(st.booleans()):
        flags = draw(st.lists(st.booleans(), min_size=sizes[0], max_size=sizes[0]))
        within["layer0"] = torch.tensor(flags, dtype=torch.bool)
    left = sum(int(within[n].sum()) if n in within else s.numel() for n, s in scores.items())
    return scores, draw(st.integers(0, left)), within


@pytest.mark.usefixtures("_tiny")
def test_the_sample_decides_and_is_refused_in_these_tests():
    """So that the property below tries both roads."""
    torch.manual_seed(0)
    with mock.patch.object(topk, "count_digits", wraps=topk.count_digits) as counted:
        keep_top({"w": torch.rand(300)}, 60)
        assert not counted.called
        keep_top({"w": torch.ones(300)}, 60)
        assert counted.called


@pytest.mark.parametrize("few", [False, True])
@given(race=races())
def test_any_race_ends_as_a_stable_sort(few, race):
    scores, kept, within = race
    expected = sorted_masks(scores, kept, within)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topk, "PIECE_ELEMENTS", 7)
        for name, value in () if few else TINY.items():
            patch.setattr(topk, name, value)
        found = keep_top(scores, kept, within)
    for name, mask in expected.items():
        assert torch.equal(found[name], mask)


@pytest.mark.parametrize("kept", [1, 1000, 300_000, 1_400_000])
@pytest.mark.parametrize("kind", ["spread", "rounded", "constant", "mostly zero"])
@pytest.mark.parametrize("few", [0, topk.MAX_COPIED_ELEMENTS])
def test_a_large_race_ends_as_by_counting(kept, kind, few, monkeypatch):
    monkeypatch.setattr(topk, "MAX_COPIED_ELEMENTS", few)
    torch.manual_seed(0)
    scores = {"a": torch.rand(1_000_000), "b": torch.rand(500_000).mul_(3), "c": torch.rand(3)}
    for score in scores.values():
        if kind == "rounded":
            score.mul_(50).round_()
        elif kind == "constant":
            score.fill_(0.5)
        elif kind == "mostly zero":
            score.mul_(score > 0.9)
    found = keep_top(scores, kept)
    assert sum(int(mask.sum()) for mask in found.values()) == kept
    for name, mask in by_counting(scores, kept).items():
        assert torch.equal(found[name], mask)


@pytest.mark.parametrize("recording", [False, True])
def test_scores_may_belong_to_a_graph(recording):
    scores = {"a": torch.rand(1200, 1000)}
    expected = keep_top(scores, 1000)["a"]
    scores["a"].requires_grad_()
    with torch.set_grad_enabled(recording):
        assert torch.equal(keep_top(scores, 1000)["a"], expected)


@pytest.mark.parametrize("within", [False, True])
def test_the_number_of_threads_changes_nothing(within, monkeypatch):
    monkeypatch.setattr(topk, "MAX_COPIED_ELEMENTS", 0)
    torch.manual_seed(0)
    scores = {"a": torch.rand(1500, 1000).t(), "b": torch.rand(700_001).mul_(40).round_()}
    allowed = {"a": torch.rand(1000, 1500) < 0.3} if within else None
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            found.append(keep_top(scores, 90_000, allowed))
    finally:
        torch.set_num_threads(threads)
    for name, mask in by_counting(scores, 90_000, allowed).items():
        assert torch.equal(found[0][name], mask)
        assert torch.equal(found[1][name], mask)


def test_a_sample_that_meets_only_what_is_pruned_does_not_decide():
    torch.manual_seed(0)
    scores = {"w": torch.rand(17_000, topk.SAMPLE_STRIDE)}
    within = {"w": torch.ones(17_000, topk.SAMPLE_STRIDE, dtype=torch.bool)}
    within["w"][:, 0] = False  # whose elements are all that the sample has
    found = keep_top(scores, 4_000_000, within)["w"]
    flat = scores["w"].masked_fill(~within["w"], -1).flatten()
    expected = torch.zeros(len(flat), dtype=torch.bool)
    expected[flat.argsort(descending=True, stable=True)[:4_000_000]] = True
    assert torch.equal(found.flatten(), expected)


def test_ties_take_no_memory_for_their_places():
    scores = {"w": torch.ones(topk.MAX_COPIED_ELEMENTS + 1)}
    kept = len(scores["w"]) // 2
    keep_top(scores, kept)  # imports, threads
    with peak() as extra:
        mask = keep_top(scores, kept)["w"]
    assert mask[:kept].all()
    assert not mask[kept:].any()
    # The mask has a byte per score; a list of the places would have eight per tie.
    assert extra[0] < 4 * len(mask)
