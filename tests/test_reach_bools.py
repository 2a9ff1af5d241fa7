"""Large linear layers are followed by comparing bools: with the same result as by multiplying."""

import pytest
import torch
from torch import nn

import snip
from snip.paths import reach as module
from snip.paths.reach import FOLLOWED, reach
from snip.selection.repair import with_a_path


@pytest.mark.parametrize("columns", [24, 21])  # rows that divide into words of eight, and not
@pytest.mark.parametrize("bias", [False, True])
def test_bools_say_what_floats_say(columns, bias, monkeypatch):
    torch.manual_seed(0)
    for density in (0.0, 0.05, 0.5):
        mask = torch.rand(40, columns) < density
        kinds = torch.randint(0, 3, (1, columns))
        x = torch.tensor([0.0, 1.0, FOLLOWED])[kinds]  # nothing, a constant, of the input
        added = (torch.rand(40) < 0.5).float() if bias else None
        with monkeypatch.context() as patch, torch.no_grad():
            patch.setattr(module, "LARGE", 1)
            patch.setattr(module, "WORDS", 7)
            found = module.something(module._linear(x, mask, added))
        with torch.no_grad():
            expected = module.something(module._linear(x, mask, added))
        assert torch.equal(found, expected)


def test_a_network_is_followed_alike(monkeypatch):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 9)
    )
    masks = {n: torch.rand(p.shape) < 0.08 for n, p in model.named_parameters()}
    call = (torch.randn(4, 16),), {}
    expected = reach(model, masks, call)
    monkeypatch.setattr(module, "LARGE", 1)
    assert reach(model, masks, call) == expected
    assert 0 < expected.reached < expected.outputs  # so that a difference would show


def test_no_selection_is_made_that_is_not_tried():
    """With some outputs reached, more connections are never tried, and so never selected."""
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 2, bias=False))
    first, second = torch.zeros(3, 3).bool(), torch.zeros(2, 3).bool()
    first[0, 0] = second[0, 0] = True
    masks = snip.Masks({"0.weight": first, "1.weight": second})
    asked = []

    def select(**settings):
        asked.append(settings)
        return masks

    with pytest.warns(snip.SnipWarning, match="Tried in vain"):
        with_a_path(model, masks, ((torch.ones(5, 3),), {}), select, repair=True)
    assert len(asked) == 3
    assert not any("sparsity" in settings for settings in asked)
