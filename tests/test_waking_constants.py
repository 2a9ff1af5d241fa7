"""Small constants that hide nothing, such as temperatures and slopes, are scored as they are."""

import warnings

import pytest
import torch
from torch import nn

import snip


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
