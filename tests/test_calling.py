"""The tensors of whatever a user gives: found, and exchanged for others."""

from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from expected_warnings import expects
from torch import nn

import snip
from snip.network.calls import copied, mapped, tensors_in

ONE, TWO = torch.tensor([1.0]), torch.tensor([2.0])


Pair = namedtuple("Pair", "image note")


class Encoding(UserDict):
    """A batch whose fields are attributes too, as transformers' are."""

    def __getattr__(self, name):
        return self.data[name]


@dataclass
class Inputs:
    image: torch.Tensor
    more: Any = None
    note: Any = field(default="left alone", repr=False)


@dataclass(frozen=True, slots=True)
class Frozen:
    image: torch.Tensor


def test_a_dataclass_itself_has_no_tensors():
    assert list(tensors_in((Inputs, ONE))) == [ONE]
    assert mapped((Inputs, ONE), torch.neg) == (Inputs, -ONE)


@pytest.mark.parametrize("kind", ["dataclass", "list", "dict"])
def test_what_refers_to_itself_is_looked_at_once(kind):
    value = {"dataclass": Inputs(ONE), "list": [ONE], "dict": {"image": ONE}}[kind]
    if kind == "dataclass":
        value.more = [value]
    elif kind == "list":
        value.append((value,))
    else:
        value["more"] = value
    assert list(tensors_in(value)) == [ONE]
    found = mapped(value, torch.neg)
    assert list(tensors_in(found)) == [-ONE]
    inner = {"dataclass": lambda: found.more[0], "list": lambda: found[1][0]}
    assert inner.get(kind, lambda: found["more"])() is found


def test_the_tensors_of_a_dataclass_are_exchanged_and_it_stays_as_it_was():
    shared = [TWO]
    given = Inputs(ONE, {"frozen": Frozen(TWO), "lists": (shared, shared)}, note=Inputs(image=3))
    assert list(tensors_in(given)) == [ONE, TWO, TWO, TWO]
    found = mapped(given, torch.neg)
    assert type(found) is Inputs
    assert found.image == -1
    assert found.more["frozen"] == Frozen(-TWO)
    assert found.more["lists"] == ([-TWO], [-TWO])
    assert found.note is given.note
    assert (given.image, given.more["frozen"].image) == (1, 2)


class Doubling(nn.Module):
    """Writes into what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, given):
        given.image.mul_(2)
        return self.layer(given.image)


@expects("untraced")
def test_a_forward_that_writes_into_a_dataclass_leaves_the_users_alone():
    batch = Inputs(torch.ones(5, 6))
    Doubling()(copied(batch))
    assert (batch.image == 1).all()
    model = Doubling()
    snip.prune(model, [batch], sparsity=0.5, loss_fn=lambda m, b: m(copied(b)).square().sum())
    assert snip.accelerate(model, batch, ways={}) is not None
    assert (batch.image == 1).all()


@pytest.mark.parametrize("given", [Pair(ONE, "a"), torch.max(torch.eye(2), 0), [Pair(ONE, (TWO,))]])
def test_named_tuples_are_copied_with_their_tensors(given):
    found = copied(given)
    assert type(found) is type(given)
    for mine, theirs in zip(tensors_in(found), tensors_in(given), strict=True):
        assert torch.equal(mine, theirs)
        assert mine.data_ptr() != theirs.data_ptr()


@pytest.mark.parametrize("kind", [dict, OrderedDict, Encoding])
def test_a_copy_of_a_mapping_is_of_its_kind(kind):
    given = kind(image=ONE, note="a")
    found = mapped(given, torch.neg)
    assert type(found) is kind
    assert (found["image"], given["image"], found["note"]) == (-1, 1, "a")
    if kind is Encoding:
        assert found.image == -1


def test_a_copy_needs_a_gradient_where_the_original_does():
    given = ONE.clone().requires_grad_(), TWO
    assert [tensor.requires_grad for tensor in copied(given)] == [True, False]
