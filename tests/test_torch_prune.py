"""Masks from and to torch.nn.utils.prune: the same outputs, names and zeros on both sides."""

import copy

import pytest
import torch
from expected_warnings import expects
from torch import nn
from torch.nn.utils import prune

import snip
from snip.integrations.torch_prune import from_pruned, to_pruned

IMAGES, LABELS = torch.linspace(-2, 2, 30).view(5, 6), torch.tensor([0, 1, 2, 1, 0])


def network():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def pruned_by_torch():
    model = network()
    prune.random_unstructured(model[0], "weight", amount=0.3)
    prune.l1_unstructured(model[0], "weight", amount=0.5)  # a container of two
    prune.ln_structured(model[2], "weight", amount=2, n=2, dim=1)
    prune.l1_unstructured(model[2], "bias", amount=1)
    return model


def step(model, optimizer):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(IMAGES), LABELS).backward()
    optimizer.step()


def plain_names(model):
    return set(model.state_dict()) == set(network().state_dict())


def test_from_torch():
    model = pruned_by_torch()
    before = model(IMAGES).detach()
    buffers = {n.removesuffix("_mask"): m for n, m in model.named_buffers()}
    stored = {n.removesuffix("_orig"): p for n, p in model.named_parameters()}
    masks = from_pruned(model)
    assert {n: m.float().tolist() for n, m in masks.items()} == {
        n: m.tolist() for n, m in buffers.items()
    }
    assert list(masks) == [n for n, _ in model.named_parameters() if n in masks]
    assert masks.provenance.method == "torch.nn.utils.prune"
    assert torch.equal(model(IMAGES), before)
    assert plain_names(model)
    assert not any(prune.is_pruned(module) for module in model.modules())
    assert all(p is stored[n] for n, p in model.named_parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(3):
        step(model, optimizer)
    masks.check(model)
    assert not torch.equal(model(IMAGES), before)


def test_to_torch_trains_as_torch_does():
    model = network()
    masks = snip.prune(model, (IMAGES, LABELS), sparsity=0.6)
    before, twin = model(IMAGES).detach(), copy.deepcopy(model)
    to_pruned(model)
    assert torch.equal(model(IMAGES), before)
    assert snip.held_masks(model) is None
    assert set(model.state_dict()) == {f"{n}_{k}" for n in masks for k in ("orig", "mask")}
    assert all(prune.is_pruned(model[i]) for i in (0, 2))
    ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (twin, model))
    for _ in range(4):
        step(twin, ours), step(model, theirs)
        torch.testing.assert_close(model(IMAGES), twin(IMAGES))
    found = from_pruned(model)  # and back again
    assert found == masks
    found.check(model)
    torch.testing.assert_close(model(IMAGES), twin(IMAGES))


def test_masks_that_the_model_does_not_hold_and_those_of_a_part():
    model = network()
    held = snip.prune(model, (IMAGES, LABELS), sparsity=0.5, biases="keep")
    to_pruned(model, snip.Masks({"0.weight": held["0.weight"]}))
    assert list(snip.held_masks(model)) == ["2.weight"]
    assert (prune.is_pruned(model[0]), prune.is_pruned(model[2])) == (True, False)
    assert from_pruned(model) == held


def test_tied_and_recurrent_weights():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.a, self.b = nn.GRU(6, 8), nn.Linear(8, 8), nn.Linear(8, 8)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(self.a(self.rnn(x)[0]))

    model = Tied()
    masks = snip.Masks({
        n: torch.rand(p.shape) > 0.5 for n, p in model.named_parameters() if p.ndim > 1
    })  # fmt: skip
    masks.apply(model)
    before = model(IMAGES).detach()
    to_pruned(model)
    assert prune.is_pruned(model.a)
    assert prune.is_pruned(model.b)
    torch.testing.assert_close(model(IMAGES), before)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad(), model(IMAGES).square().sum().backward(), optimizer.step()
    assert from_pruned(model) == masks
    assert model.b.weight is model.a.weight
    model(IMAGES).sum().backward()
    assert not model.rnn.weight_ih_l0.grad[~masks["rnn.weight_ih_l0"]].any()
    prune.l1_unstructured(model.a, "weight", amount=1)
    with pytest.raises(snip.InputError, match=r"'a\.weight' is tied to other weights"):
        from_pruned(model)
    assert prune.is_pruned(model.a)


def test_what_is_refused_changes_nothing():
    with pytest.raises(snip.InputError, match=r"pruned nothing in this model"):
        from_pruned(network())
    with pytest.raises(snip.InputError, match="holds no masks"):
        to_pruned(network())
    scaled = network()
    prune.custom_from_mask(scaled[0], "weight", torch.full((8, 6), 0.5))
    normed = nn.utils.weight_norm(nn.Linear(6, 8))
    prune.l1_unstructured(normed, "weight_v", amount=1)
    for model, words in ((scaled, "values other than 0 and 1"), (normed, "under a norm")):
        with pytest.raises(snip.InputError, match=words):
            from_pruned(model)
        assert prune.is_pruned(model)
    attention = nn.MultiheadAttention(8, 2)
    keep = {n: torch.rand(p.shape) > 0.2 for n, p in attention.named_parameters() if p.ndim > 1}
    with pytest.raises(snip.InputError, match=r"cannot prune 'out_proj\.weight'"):
        to_pruned(attention, snip.Masks(keep))
    to_pruned(attention, snip.Masks({"in_proj_weight": keep["in_proj_weight"]}))
    assert from_pruned(attention).keys() == {"in_proj_weight"}
    with pytest.raises(snip.InputError, match="of another model"):
        to_pruned(network(), snip.Masks(keep))
    with pytest.raises(snip.InputError, match=r"masks is a dict, not snip\.Masks"):
        to_pruned(network(), {"0.weight": torch.ones(8, 6)})


@expects("losses")
def test_a_model_that_torch_has_pruned_is_taken_over_first():
    model = pruned_by_torch()
    before = copy.deepcopy(model.state_dict())
    for refuses in (
        lambda: snip.prune(model, (IMAGES, LABELS), sparsity=0.9),
        lambda: snip.accelerate(model, IMAGES),
    ):
        with pytest.raises(snip.InputError, match=r"'0\.weight_orig'.*from_pruned\(model\)"):
            refuses()
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
    first = from_pruned(model)
    further = snip.prune(model, (IMAGES, LABELS), sparsity=0.9)
    assert not any((further[name] & ~first[name]).any() for name in first)
