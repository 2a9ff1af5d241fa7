"""Every method, in rounds or not, selects in every granularity; controls draw from its masks."""

import pytest
import torch
from expected_warnings import expects
from granularity_parts import BATCH, own_scores
from networks import Mlp

import snip
from snip.methods import METHODS, AtInitialisation
from snip.methods.controls import randomized, shuffled
from snip.selection.granularity import checked_granularity

# Those that rank connections; "erk" gives shares, which only blocks take.
SCORING = [n for n, m in METHODS.items() if isinstance(m, AtInitialisation) and m.scope is None]


@pytest.mark.parametrize("method", [*SCORING, own_scores])
@pytest.mark.parametrize("granularity", ["element", "channel", "2:4", "2x2"])
@expects("losses", "pattern")
def test_every_method_selects_in_every_granularity(method, granularity):
    model = Mlp()
    settings = {} if granularity == "2:4" else {"sparsity": 0.6}
    masks = snip.prune(model, BATCH, method=method, granularity=granularity, **settings)
    assert masks.provenance.granularity == granularity
    masks.check(model)
    asked = masks.total if granularity == "2:4" else round(masks.total * 0.4)
    largest = {"element": 1, "2x2": 4, "channel": 10, "2:4": masks.total}[granularity]
    assert asked - largest < masks.kept <= asked  # of units and blocks the next would not fit
    # Selected from these masks themselves, whole groups are found again.
    whole = checked_granularity(granularity).on(model, BATCH[0])
    scores = {name: mask.float() for name, mask in masks.items()}
    again = whole.keep(scores, masks.kept)
    assert all(torch.equal(again[name], mask) for name, mask in masks.items())
    copy = snip.accelerate(model, BATCH[0], ways={})
    torch.testing.assert_close(copy(BATCH[0]), model(BATCH[0]))


@pytest.mark.parametrize("granularity", ["channel", "2:4", "2x2"])
@expects("pattern")
def test_rounds_score_what_the_rounds_before_have_left(granularity):
    masks = snip.prune(Mlp(), BATCH, sparsity=0.5, method="snip-it", granularity=granularity)
    assert masks.provenance.rounds > 1


@pytest.mark.parametrize("control", [shuffled, randomized])
def test_controls_of_whole_groups_are_single_connections(control):
    blocks = snip.prune(Mlp(), BATCH, sparsity=0.6, granularity="2x2")
    with pytest.warns(snip.SnipWarning, match="keep or remove '2x2' whole, and single connections"):
        masks = control(blocks)
    assert masks.provenance.granularity == "element"


@pytest.mark.parametrize("granularity", ["element", "channel", "2x2"])
def test_a_pruned_model_is_pruned_further_within_its_masks(granularity):
    model = Mlp()
    for earlier in ("element", granularity):
        first = snip.prune(model, BATCH, sparsity=0.3, granularity=earlier)
        second = snip.prune(model, BATCH, sparsity=0.6, granularity=granularity)
        assert second.kept <= round(second.total * 0.4)
        assert all(bool((first[n] | ~mask).all()) for n, mask in second.items())
        model = Mlp()
