"""Losses, batches and settings that cannot be scored with, and what they are told."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from networks import make
from torch import nn

import snip


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda m, b: m(b[0]), "shape"),
        (lambda m, b: m(b[0]).sum().detach(), "no gradient"),
        (lambda m, b: m(b[0]).sum() * torch.nan, "nan"),
        (lambda m, b: 1.0, "scalar tensor"),
        (lambda m, b: torch.ones((), requires_grad=True) * 2, "does not depend"),
    ],
)
def test_bad_losses_are_refused(loss, message):
    model, batch = make("mlp")
    with pytest.raises(snip.InputError, match=message):
        snip.connection_sensitivity(model, batch, loss)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (nn.CrossEntropyLoss(), "CrossEntropyLoss module"),
        (5, "function of"),
        (lambda m, b: m(b[0]).sum() * 1j, "complex"),
    ],
)
def test_losses_of_the_wrong_kind_are_refused(loss, message):
    model, batch = make("mlp")
    with pytest.raises(snip.InputError, match=message):
        snip.connection_sensitivity(model, batch, loss)


def test_what_cross_entropy_cannot_take_is_explained():
    model, (inputs, _) = make("mlp")
    for targets in (torch.full((5,), 9), torch.zeros(4).long()):
        with pytest.raises(snip.InputError, match="cross-entropy of"):
            snip.connection_sensitivity(model, (inputs, targets))

    class Pair(nn.Linear):
        def forward(self, x):
            return super().forward(x), x

    with pytest.raises(snip.KindError, match="a tuple of 2"):
        snip.connection_sensitivity(Pair(6, 3), (inputs, torch.zeros(5).long()))


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        (torch.randn(3, 6), "pair of tensors"),
        ({"x": torch.randn(3, 6)}, "pair of tensors"),
        (7, "iterable of batches"),
        ("mnist", "iterable of batches"),
        ([], "no batches"),
        ([(torch.randn(3, 6),)], "pair of tensors"),
    ],
)
def test_bad_batches_are_refused(batches, message):
    model, _ = make("mlp")
    with pytest.raises(snip.InputError, match=message):
        snip.connection_sensitivity(model, batches)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reduction": "abs_sum"}, "'abs_of_sum'"),
        ({"batch_norm": "trian"}, "'train'"),
        ({"loss_reduction": "men"}, "'mean'"),
        ({"reduction": "ema", "decay": 1.5}, "decay"),
        ({"batch_dim": 1.0}, "batch_dim is 1.0"),
    ],
)
def test_wrong_settings_are_refused_when_they_are_made(settings, message):
    with pytest.raises(snip.InputError, match=message):
        snip.Scoring(**settings)


def test_settings_of_another_kind_are_refused():
    model, batch = make("mlp")
    for work in (snip.connection_sensitivity, partial(snip.prune, sparsity=0.5)):
        with pytest.raises(snip.KindError, match=r"'ema'.*snip\.Scoring"):
            work(model, batch, scoring="ema")
    assert snip.held_masks(model) is None


@pytest.mark.parametrize(
    ("loss_fn", "batch", "message"),
    [
        (F.cross_entropy, (torch.randn(3, 6), torch.tensor([0, 1, 2])), "write loss_fn=lambda"),
        (None, (torch.randn(0, 6), torch.tensor([], dtype=torch.long)), "batch 0 has no samples"),
        (None, (torch.randn(3, 6), torch.tensor([0, 1, 2], dtype=torch.int32)), "targets.long"),
    ],
)
def test_batches_and_losses_that_cannot_work_are_named(loss_fn, batch, message):
    model, _ = make("mlp")
    with pytest.raises(snip.InputError, match=message):
        snip.connection_sensitivity(model, batch, loss_fn)


def test_a_batch_dimension_that_there_is_not():
    model, batch = nn.Linear(4, 3), (torch.randn(8, 4), torch.randint(3, (8,)))
    with pytest.raises(snip.InputError, match=r"batch_dim is 5, .* \(8, 4\): .* from 0 to 1"):
        snip.prune(model, batch, sparsity=0.5, scoring=snip.Scoring(batch_dim=5))
