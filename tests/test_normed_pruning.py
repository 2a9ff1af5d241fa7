"""Weights under weight norm and spectral norm are scored, pruned and held, and never give NaN."""

import pytest
import torch
from expected_warnings import expects
from normed_parts import NORMS, batch, effective, network
from torch import nn
from torch.nn.utils import parametrizations

import snip
from snip.network.network import Network
from snip.network.norms import normed_weights


@pytest.mark.parametrize("kind", NORMS)
def test_they_are_pruned_by_default_and_zeros_stay_zero(kind):
    norm, stored = NORMS[kind]
    model = network(norm)
    names = [f"{layer}.{stored}" for layer in (0, 2, 5)]
    masks = snip.prune(model, batch(), sparsity=0.9)
    assert set(names) < set(masks)
    assert masks.total == sum(p.numel() for p in network().parameters())
    assert masks.kept == round(masks.total * 0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    for _ in range(5):
        loss = nn.functional.cross_entropy(model(batch()[0]), batch()[1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    masks.check(model)
    for name, weight in effective(model).items():
        assert weight.isfinite().all()
        assert not weight[~masks[name]].any()
        assert weight[masks[name]].all()


@pytest.mark.parametrize("kind", NORMS)
def test_nothing_becomes_nan_where_scores_would_empty_a_part(kind):
    model = network(NORMS[kind][0])
    with torch.no_grad():
        model[5].bias.fill_(5)  # tanh is flat there: the scores of the linear layer are tiny
    masks = snip.prune(model, batch(), sparsity=0.9)
    for name, normed in normed_weights(model).items():
        assert normed.parts(masks[name]).any(1).all()
    further = snip.prune(model, batch(), sparsity=0.93)
    assert further.kept == round(further.total * 0.07)
    assert model(batch()[0]).isfinite().all()
    saved = snip.prune(network(NORMS[kind][0]), batch(), sparsity=0.8, budget="flops")
    assert saved.kept > 0


@pytest.mark.parametrize("kind", NORMS)
@expects("losses")
def test_masks_that_would_give_nan_change_nothing(kind):
    norm, stored = NORMS[kind]
    model = network(norm)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    empty = torch.zeros_like(model.get_parameter(f"5.{stored}")).bool()
    empty[1:] = kind.endswith("weight")
    with pytest.raises(snip.InputError, match="1 of them would keep no connection"):
        snip.Masks({f"5.{stored}": empty}).apply(model)
    if kind.endswith("weight"):  # fewer connections than rows
        with pytest.raises(snip.InputError, match="lower sparsity"):
            snip.prune(model, batch(), sparsity=0.995)
    assert snip.held_masks(model) is None
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_length_over_the_whole_weight_and_over_columns():
    for dim, parts in ((None, 1), (1, 4)):
        layer = parametrizations.weight_norm(nn.Linear(4, 3), dim=dim)
        (normed,) = normed_weights(layer).values()
        assert normed.parts(normed.stored).shape == (parts, 12 // parts)
        mask = torch.zeros(3, 4).bool()
        mask[0] = True
        snip.Masks({"parametrizations.weight.original1": mask}).apply(layer)
        assert layer.weight.isfinite().all()


@pytest.mark.parametrize("kind", ["weight", "spectral"])
def test_the_score_is_the_change_of_the_loss_when_a_connection_goes(kind):
    norm, key = NORMS[kind]
    model = network(norm).double().eval()
    images, labels = batch()[0].double(), batch()[1]
    scores = snip.connection_sensitivity(model, (images, labels))
    stored = model.get_parameter(f"5.{key}")
    step = 1e-6
    for place in ((0, 0), (3, 7), (11, 99)):
        losses = []
        for c in (1 + step, 1 - step):  # c multiplies the stored weight, as a mask does
            with torch.no_grad():
                own = stored[place].clone()
                stored[place] *= c
                losses.append(nn.functional.cross_entropy(model(images), labels))
                stored[place] = own
        slope = abs(losses[0] - losses[1]) / (2 * step)
        torch.testing.assert_close(scores[f"5.{key}"][place], slope, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("kind", ["spectral", "old spectral"])
def test_the_largest_stretch_is_one_right_after_pruning(kind):
    model = network(NORMS[kind][0])
    masks = snip.prune(model, batch(), sparsity=0.9)
    for name, weight in effective(model).items():
        dim = normed_weights(model)[name].norm.dim
        stretch = torch.linalg.matrix_norm(weight.transpose(0, dim).flatten(1), 2)
        assert 0.999 < stretch < 1.2
    before = {name: value.clone() for name, value in model.state_dict().items()}
    masks.apply(model)  # a second time nothing changes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("kind", ["spectral", "old spectral"])
def test_weights_that_differ_only_in_their_sign_are_no_nan(kind):
    norm, stored = NORMS[kind]
    layer = nn.Linear(4, 4, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([1.0, -1, 1, -1]).expand(4, 4))
    model = nn.Sequential(norm(layer)).eval()
    snip.Masks({f"0.{stored}": torch.tensor([True, True, False, False]).expand(4, 4)}).apply(model)
    stretch = torch.linalg.matrix_norm(model[0].weight, 2).item()
    assert stretch == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("kind", ["weight", "old weight"])
def test_lengths_are_no_connections(kind):
    reasons = Network.of(network(NORMS[kind][0])).left_out
    assert set(reasons.values()) == {"length of a weight under weight norm"}
    assert len(reasons) == 3


@pytest.mark.parametrize("kind", NORMS)
def test_weight_and_bias_are_one_layer(kind):
    masks = snip.prune(network(NORMS[kind][0]), batch(), sparsity=0.5, scope="layer")
    sizes = [sum(p.numel() for p in layer.parameters()) for layer in network()]
    kept = {}
    for name, mask in masks.items():
        kept[name[0]] = kept.get(name[0], 0) + int(mask.sum())
    assert [abs(kept[key] - sizes[int(key)] / 2) <= 1 for key in kept] == [True] * 4
