"""n of m inputs: an oracle that sorts, the rule of torch.sparse, and layers it leaves as before."""

import itertools

import pytest
import torch
from expected_warnings import expects
from granularity_parts import IMAGES, parameters, some_left
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import ConvNet
from torch import nn
from torch.sparse._semi_structured_conversions import (
    sparse_semi_structured_from_dense_cutlass,
    sparse_semi_structured_to_dense_cutlass,
)

import snip


@given(data=st.data(), n=st.integers(1, 3), m=st.integers(2, 4))
@settings(max_examples=100)
@expects("pattern")
def test_the_best_n_of_every_m_inputs_stay(data, n, m):
    scores = data.draw(parameters(fewest_dimensions=2))
    within = data.draw(some_left(scores))
    if n >= m:
        n = m - 1
    follows = [name for name, score in scores.items() if score.shape[1] % m == 0]
    if not follows:
        with pytest.raises(snip.InputError, match=f"divides by {m}"):
            snip.select(scores, granularity=f"{n}:{m}", within=within)
        return
    masks = snip.select(scores, granularity=f"{n}:{m}", within=within)
    for name, score in scores.items():
        left = within.get(name, torch.ones(score.shape, dtype=torch.bool))
        if name not in follows:
            assert torch.equal(masks[name], left)
            continue
        # [outputs, inputs, positions] -> a group is m consecutive inputs at one position
        values, allowed, kept = (x.reshape(*x.shape[:2], -1) for x in (score, left, masks[name]))
        for out, start, at in itertools.product(
            range(values.shape[0]), range(0, values.shape[1], m), range(values.shape[2])
        ):
            places = [i for i in range(start, start + m) if allowed[out, i, at]]
            best = sorted(places, key=lambda i: -values[out, i, at])[:n]
            assert [i for i in range(start, start + m) if kept[out, i, at]] == sorted(best)


def test_two_of_four_is_the_rule_of_torch_sparse():
    """A weight goes through torch's compressed form and back only if it is 2:4."""
    model = nn.Sequential(nn.Conv2d(8, 64, 3), nn.Flatten(), nn.Linear(64 * 4, 64))
    snip.prune(model, (torch.randn(4, 8, 4, 4), torch.arange(4)), granularity="2:4")
    linear = model[2].weight.detach().half()
    # Channels last, as GPUs compute convolutions: [outputs, positions x inputs].
    convolution = model[0].weight.detach().permute(0, 2, 3, 1).flatten(1).half()
    for weight in (linear, convolution[:, :64]):
        values, places = sparse_semi_structured_from_dense_cutlass(weight)
        assert values.shape == (weight.shape[0], weight.shape[1] // 2)
        assert torch.equal(sparse_semi_structured_to_dense_cutlass(values, places), weight)
    full = linear.clone()
    full[0, :4] = 1.0
    back = sparse_semi_structured_to_dense_cutlass(*sparse_semi_structured_from_dense_cutlass(full))
    assert not torch.equal(back, full)


def test_n_of_m_has_its_own_sparsity_and_leaves_what_does_not_divide():
    model = nn.Sequential(nn.Conv2d(2, 8, 3), nn.Flatten(), nn.Linear(8 * 16, 3))
    with pytest.raises(snip.InputError, match=r"'2:4' removes 0\.5 .* sparsity is 0\.9"):
        snip.prune(model, IMAGES, sparsity=0.9, granularity="2:4")
    with pytest.warns(snip.SnipWarning, match=r"leaves '0\.weight' as before"):
        masks = snip.prune(model, IMAGES, sparsity=0.5, granularity="2:4")
    assert masks["0.weight"].all()
    assert masks["0.bias"].all()
    assert (masks["2.weight"].view(-1, 4).sum(1) == 2).all()
    assert masks.provenance.granularity == "2:4"
    assert masks.provenance.sparsity_asked == 0.5
    assert "1 of 2 weights follow it, '0.weight' cannot" in str(snip.report(model))


@expects("losses")
def test_transposed_layers_are_grouped_along_their_inputs():
    model = ConvNet()  # its transposed convolution has a weight [inputs, outputs, ...]
    with pytest.warns(snip.SnipWarning, match="conv.weight"):
        masks = snip.prune(model, IMAGES, granularity="1:4")
    assert (masks["up.weight"].sum(0) == 1).all()
    model = ConvNet()
    masks = snip.prune(model, IMAGES, sparsity=0.6, granularity="2x4")
    blocks = masks["up.weight"].transpose(0, 1).reshape(2, 2, 4, 4).sum((1, 3))
    assert set(blocks.flatten().tolist()) <= {0, 8}
