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


class Divided(nn.Module):
    """A network with one more small constant, which is no scale of a part that sleeps."""

    def __init__(self, constant, use):
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
        self.constant, self.use = nn.Parameter(constant), use
        self.rezero = nn.Parameter(torch.ones(()))

    def forward(self, x):
        x = torch.tanh(self.body(x))
        return self.use(self.head(x + self.rezero * torch.sin(x)), self.constant)


SMALL = {
    "temperature": (torch.tensor(0.07), torch.div),
    "temperature of one element": (torch.tensor([0.02]), torch.div),
    "negative": (torch.full((3,), -0.05), torch.sub),
    "slope": (torch.tensor([0.01]), nn.functional.prelu),
    "layer scale": (torch.full((3,), 0.01), torch.mul),  # the one that sleeps
}


@pytest.mark.parametrize("kind", SMALL)
def test_a_small_constant_that_hides_nothing_is_scored_as_it_is(kind):
    constant, use = SMALL[kind]
    found = []
    for zero_parts in ("woken", "as-is"):
        torch.manual_seed(0)
        model, batch = Divided(constant.clone(), use), (torch.randn(6, 6), torch.arange(6) % 3)
        heard = []

        def loss(model, batch, heard=heard):
            heard.append(model.constant.detach().clone())
            return nn.functional.cross_entropy(model(batch[0]), batch[1])

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if kind != "layer scale":
                warnings.filterwarnings("error", message="parts that start at zero")
            scoring = snip.Scoring(zero_parts=zero_parts)
            masks = snip.prune(model, batch, sparsity=0.5, loss_fn=loss, scoring=scoring)
        found.append((masks, all(torch.equal(value, constant) for value in heard)))
    assert found[1][1]
    assert found[0][1] == (kind != "layer scale")
    if kind != "layer scale":
        assert found[0][0] == found[1][0]


@pytest.mark.parametrize("shared", [False, True])
def test_slopes_of_prelu_are_not_woken(shared):
    model = nn.Sequential(nn.Linear(6, 8), nn.PReLU(1 if shared else 8, init=0.01), nn.Linear(8, 3))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="parts that start at zero")
        snip.prune(model, (torch.randn(6, 6), torch.arange(6) % 3), sparsity=0.5)


def test_a_temperature_beside_a_part_that_sleeps_is_scored_as_it_is():
    class Both(Divided):
        def __init__(self, rezero):
            super().__init__(torch.tensor(0.07), torch.div)
            self.inside = nn.Linear(8, 8)
            nn.init.constant_(self.rezero, rezero)

        def forward(self, x):
            x = torch.tanh(self.body(x))
            return self.head(x + self.rezero * self.inside(x)) / self.constant

    masks = []
    for rezero in (0.0, 1.0):
        torch.manual_seed(0)
        model, batch = Both(rezero), (torch.randn(6, 6), torch.arange(6) % 3)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            masks.append(snip.prune(model, batch, sparsity=0.5))
        said = [str(w.message) for w in caught]
        assert any("'rezero'" in sentence for sentence in said) == (rezero == 0)
        assert not any("'constant'" in sentence for sentence in said)
    assert masks[0] == masks[1]


def test_a_small_number_that_silences_is_woken():
    class Tiny(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
            self.scale = nn.Parameter(torch.tensor(1e-30))

        def forward(self, x):  # the square is zero in float32
            return self.last(torch.tanh(self.first(x)) * self.scale * self.scale)

    model, batch = Tiny(), (torch.randn(6, 6), torch.arange(6) % 3)
    with pytest.warns(snip.SnipWarning, match="'scale', zero or nearly so, scored as if one"):
        masks = snip.prune(model, batch, sparsity=0.5)
    assert masks["first.weight"].any()
    assert float(model.scale.detach()) == pytest.approx(1e-30)


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
