"""Whatever becomes of a weight, neither the forward nor the fused step misreads its memory."""

import pytest
import torch
from guard_parts import in_place, strided, trained
from torch import nn

from snip.common.errors import InputError
from snip.engine.kernels.library import available

pytestmark = pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set")


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("size", [0, 3, 100_000])
def test_a_weight_of_another_length_is_refused(gradients, size):
    fast, _, _, _, step, (images, labels) = trained()
    next(fast.parameters()).data = torch.zeros(size)
    with torch.set_grad_enabled(gradients), pytest.raises(InputError, match="values must be"):
        fast(images)
    with pytest.raises(InputError, match="values must be"):
        step(images, labels)


def test_a_weight_whose_storage_shrank_is_refused():
    fast, _, _, _, step, batch = trained()
    weight = next(fast.parameters())
    weight.untyped_storage().resize_(16)
    with pytest.raises(InputError, match="values must be"):
        step(*batch)


@pytest.mark.parametrize("change", [torch.Tensor.double, strided, lambda w: torch._neg_view(-w)])
def test_a_weight_of_another_kind_is_never_misread(change):
    fast, _, _, _, _, (images, _) = trained()
    weight = next(fast.parameters())
    with torch.no_grad():
        expected = fast(images)
        weight.data = change(weight.data)
        try:
            found = fast(images)
        except (RuntimeError, InputError):
            return
    torch.testing.assert_close(found, expected)


def test_parameters_that_are_no_parameters_any_more():
    fast, _, _, _, step, batch = trained()
    layer = next(m for m in fast.modules() if isinstance(getattr(m, "weight", None), nn.Parameter))
    layer.weight = nn.Parameter(torch.zeros(2))
    with pytest.raises(InputError, match="values must be"):
        step(*batch)


@pytest.mark.parametrize("change", [lambda w: w[:-1], lambda w: w[:1].expand(len(w))])
def test_a_weight_that_looks_elsewhere_is_never_misread(change):
    fast, _, _, _, step, (images, labels) = trained()
    in_place(next(fast.parameters()), change)
    with torch.no_grad(), pytest.raises(InputError, match="values must be"):
        fast(images)
    with pytest.raises(InputError, match="values must be"):
        step(images, labels)


def test_a_storage_that_shrank_and_came_back_to_its_address_is_refused():
    """The allocator gives the same address again, sooner or later."""
    fast, _, _, _, step, batch = trained()
    weight = next(fast.parameters())
    storage = weight.untyped_storage()
    address, size = storage.data_ptr(), storage.nbytes()
    for attempt in range(20_000):
        storage.resize_(size - 4 - attempt % 60 * 4)
        if storage.data_ptr() == address:
            break
    with pytest.raises(InputError, match="values must be"):
        step(*batch)
