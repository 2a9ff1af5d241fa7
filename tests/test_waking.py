"""Parts that start at zero are scored as if they were awake, and stay as they were."""

import copy
import warnings

import pytest
import torch
from torch import nn

import snip


class Block(nn.Module):
    """A residual block that begins as nothing: its last norm, scale or convolution is zero."""

    def __init__(self, asleep):
        super().__init__()
        self.stem, self.head = nn.Conv2d(2, 8, 3, padding=1), nn.Linear(8, 3)
        self.inside, self.last = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1)
        self.norm = nn.BatchNorm2d(8)
        self.scale = nn.Parameter(torch.ones(8, 1, 1))
        {
            "norm": lambda: nn.init.zeros_(self.norm.weight),
            "layer scale": lambda: nn.init.constant_(self.scale, 1e-6),
            "rezero": lambda: nn.init.zeros_(self.scale),
            "zero convolution": lambda: nn.init.zeros_(self.last.weight),
            "head": lambda: nn.init.zeros_(self.head.weight),
            "nothing": lambda: None,
        }[asleep]()

    def forward(self, x):
        x = self.stem(x)
        x = x + self.scale * self.norm(self.last(torch.relu(self.inside(x))))
        return self.head(x.mean((2, 3)))


ASLEEP = {
    "norm": "norm.weight",
    "layer scale": "scale",
    "rezero": "scale",
    "zero convolution": "last.weight",
    "head": "head.weight",
}


def make(asleep):
    torch.manual_seed(0)
    return Block(asleep), (torch.randn(6, 2, 5, 5), torch.arange(6) % 3)


@pytest.mark.parametrize("asleep", ASLEEP)
def test_what_lies_behind_a_sleeping_part_is_kept_and_the_part_unchanged(asleep):
    model, batch = make(asleep)
    before = copy.deepcopy(model.state_dict())
    with pytest.warns(snip.SnipWarning, match=f"'{ASLEEP[asleep]}'.*unchanged"):
        masks = snip.prune(model, batch, sparsity=0.8)
    assert all(masks[f"{name}.weight"].any() for name in ("stem", "inside", "last", "head"))
    for name, value in model.state_dict().items():
        kept = masks[name] if name in masks else torch.ones_like(value).bool()
        assert torch.equal(value[kept], before[name][kept])
    assert masks.provenance.batches == 1


@pytest.mark.parametrize("asleep", ["norm", "layer scale", "rezero"])
def test_a_sleeping_scale_is_scored_as_one(asleep):
    sleeping, batch = make(asleep)
    awake, _ = make("nothing")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert snip.prune(sleeping, batch, sparsity=0.8) == snip.prune(awake, batch, sparsity=0.8)


def test_as_is_leaves_them_asleep_and_names_what_is_silent():
    model, batch = make("norm")
    with pytest.warns(snip.SnipWarning, match=r"'inside\.weight', 'last\.weight'"):
        masks = snip.prune(model, batch, sparsity=0.9, scoring=snip.Scoring(zero_parts="as-is"))
    assert not masks["inside.weight"].any()


def test_nothing_is_said_where_nothing_sleeps():
    model, batch = make("nothing")
    nn.init.zeros_(model.stem.bias)  # zero biases and shifts hide nothing
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        snip.prune(model, batch, sparsity=0.5)


def test_a_zero_shift_is_not_taken_for_a_scale():
    class Shifted(Block):
        def __init__(self):
            super().__init__("nothing")
            self.shift = nn.Parameter(torch.zeros(8, 1, 1))

        def forward(self, x):
            return super().forward(x) + self.shift.sum()

    torch.manual_seed(0)
    model, batch = Shifted(), make("nothing")[1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        snip.prune(model, batch, sparsity=0.5)


def test_a_generator_that_cannot_be_read_again_is_pruned_with_what_is_known():
    model, batch = make("rezero")
    with pytest.warns(snip.SnipWarning, match=r"does not depend on 'inside\.weight'"):
        masks = snip.prune(model, iter([batch]), sparsity=0.8)
    assert masks.provenance.samples == 6


def test_the_parts_come_back_when_the_scoring_fails():
    model, batch = make("head")

    def fails(model, batch):
        assert model.head.weight.any()
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        snip.prune(model, batch, sparsity=0.8, loss_fn=fails)
    assert not model.head.weight.any()


def test_what_was_pruned_away_is_not_woken():
    model, batch = make("nothing")
    gone = {"inside.weight": torch.zeros(8, 8, 3, 3).bool()}
    snip.Masks(gone).apply(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        masks = snip.prune(model, batch, sparsity=0.9)
    assert not masks["inside.weight"].any()


def test_a_layer_that_was_pruned_away_is_not_said_to_be_scored_as_drawn():
    model, batch = make("nothing")
    gone = {"inside.weight": torch.zeros(8, 8, 3, 3).bool()}
    snip.Masks(gone).apply(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        snip.prune(model, batch, sparsity=0.9)
    assert not any("freshly drawn" in str(w.message) for w in caught)


def test_what_an_earlier_pruning_left_of_a_zero_head_is_woken_again():
    model, batch = make("head")
    for sparsity in (0.5, 0.8):
        with pytest.warns(
            snip.SnipWarning, match=r"'head\.weight', all zero, scored as if freshly"
        ):
            masks = snip.prune(model, batch, sparsity=sparsity)
    assert masks["head.weight"].any()


def test_an_unknown_way_is_refused():
    with pytest.raises(snip.InputError, match="'woken'"):
        snip.Scoring(zero_parts="wake")
