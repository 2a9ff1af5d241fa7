"""Masks guessed from zeros: what is zero all over may only not be trained yet, and stays free."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import snip
from snip.engine.kernels.library import available

X, LABELS = torch.randn(16, 20), torch.arange(16) % 10


class Headed(nn.Module):
    """A network whose head starts at zero, as those of vision transformers do."""

    def __init__(self, biases=torch.nn.init.normal_):
        super().__init__()
        self.body, self.h = nn.Linear(20, 200), nn.Linear(200, 10)
        nn.init.zeros_(self.h.weight)
        for layer in (self.body, self.h):
            biases(layer.bias)

    def forward(self, x):
        return self.h(torch.relu(self.body(x)))


def saved_and_loaded(**settings):
    """A network that was pruned, saved before training and loaded into a fresh one; its masks."""
    pruned, fresh = Headed(**settings), Headed(**settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        masks = snip.prune(pruned, (X, LABELS), sparsity=0.8, biases="keep")
    fresh.load_state_dict(pruned.state_dict())
    return fresh, masks


@pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set")
@pytest.mark.parametrize("biases", [nn.init.normal_, nn.init.zeros_])
def test_a_model_saved_before_training_is_loaded_with_a_head_that_learns(biases):
    model, masks = saved_and_loaded(biases=biases)
    assert masks["h.weight"].any()
    asleep = "'h.weight'" if biases is nn.init.normal_ else "'body.bias', 'h.weight', 'h.bias'"
    with pytest.warns(snip.SnipWarning, match=f"{asleep}: zero all over.*free to learn"):
        fast = snip.accelerate(model, X, ways={})
    optimizer = torch.optim.SGD(fast.parameters(), lr=0.1)
    for _ in range(2):  # the body learns through the head, which must have moved before
        optimizer.zero_grad()
        F.cross_entropy(fast(X), LABELS).backward()
        optimizer.step()
    plain = snip.densify(fast)
    for name, parameter in plain.named_parameters():
        assert parameter.any(), name
    assert plain.h.weight.count_nonzero() > 0.5 * plain.h.weight.numel()
    assert not plain.body.weight[~masks["body.weight"]].any()


@pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set")
def test_masks_that_are_applied_first_are_not_guessed():
    model, masks = saved_and_loaded()
    masks.apply(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fast = snip.accelerate(model, X, ways={})
    assert snip.held_masks(snip.densify(fast)) == masks


def test_wholly_zero_weights_are_kept_and_such_biases_left_out():
    model = Headed(nn.init.zeros_)
    with torch.no_grad():
        model.body.weight[:, :5] = 0
    found = snip.Masks.from_zeros(model)
    assert list(found) == ["body.weight", "h.weight"]
    assert torch.equal(found["body.weight"], model.body.weight != 0)
    assert found["h.weight"].all()


@pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set")
def test_a_model_of_untrained_layers_only_is_not_pruned():
    model = Headed()
    nn.init.zeros_(model.body.weight)
    with pytest.raises(snip.InputError, match=r"not pruned: .* 0\.0% .*zero all over not counted"):
        snip.accelerate(model, X)
    assert snip.held_masks(model) is None


def test_zero_biases_alone_say_nothing():
    model = Headed(nn.init.zeros_)
    with pytest.raises(snip.InputError, match=r"'body\.bias', 'h\.bias' are zero all over"):
        snip.Masks.from_zeros(model, params=lambda name, *_: name.endswith("bias"))


def test_a_model_most_of_which_was_pruned_away_whole_is_still_known_as_pruned():
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 400), nn.Linear(400, 3))
    with torch.no_grad():
        model[1].weight.zero_()  # most of all weights
        model[0].weight[:6] = 0
        model[2].weight[:, 350:] = 0
    with pytest.warns(snip.SnipWarning, match=r"'1\.weight': zero all over"):
        fast = snip.accelerate(model, torch.randn(4, 6), ways={})
    assert fast is not model


def test_a_loaded_model_that_is_pruned_again_is_told_of_its_zeros():
    def network():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5))

    batch = torch.randn(16, 20), torch.arange(16) % 5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pruned = network()
        snip.prune(pruned, batch, sparsity=0.8)  # nothing is said of a fresh model
        snip.prune(pruned, batch, sparsity=0.85)  # nor of one that holds its masks
    loaded = network()
    loaded.load_state_dict(pruned.state_dict())
    with pytest.warns(snip.SnipWarning, match=r"are zero and the model holds no masks.*from_zeros"):
        snip.prune(loaded, batch, sparsity=0.5)
    again = network()
    again.load_state_dict(pruned.state_dict())
    snip.Masks.from_zeros(again).apply(again)
    masks = snip.prune(again, batch, sparsity=0.9)
    assert masks.kept == sum(int(p.count_nonzero()) for p in again.parameters())
