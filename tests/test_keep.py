"""Zeroing what is pruned: exactly +0.0 whatever was there, and the kept numbers bit for bit."""

import pytest
import torch
from torch import nn

from snip.masks.holding import MAX_ELEMENTS_AS_BITS, MIN_ELEMENTS_PER_KEPT, Keep

ODD = (torch.nan, torch.inf, -torch.inf, -0.0, 1.5, -3.0)
DTYPES = (
    *(torch.float32, torch.float64, torch.bfloat16, torch.float16),
    *(torch.complex64, torch.complex128),
)
SHAPES = {
    "small": (24, 6),
    "number": (),
    "empty": (0, 3),
    "large": (MAX_ELEMENTS_AS_BITS // 512 + 3, 512),
}


def odd_numbers(shape, dtype):
    """Numbers of every kind that a careless zeroing would let through."""
    count = torch.Size(shape).numel()
    return torch.tensor(ODD).repeat(count // len(ODD) + 1)[:count].view(shape).to(dtype)


def assert_zeroed(keep, tensor, mask):
    expected = torch.where(mask, tensor, torch.zeros((), dtype=tensor.dtype))
    keep.zero_(tensor)
    torch.testing.assert_close(tensor, expected, rtol=0, atol=0, equal_nan=True)
    parts = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    assert not torch.signbit(parts[~mask]).any()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("density", [0.0, 0.5 / MIN_ELEMENTS_PER_KEPT, 0.5])
@pytest.mark.parametrize("dtype", DTYPES)
def test_exact_zeros_before_and_while_training(shape, density, dtype):
    mask = torch.rand(SHAPES[shape]) < density
    keep = Keep(mask)
    assert_zeroed(keep, odd_numbers(mask.shape, dtype), mask)
    parameter = nn.Parameter(odd_numbers(mask.shape, dtype))
    for _ in range(2):
        parameter.grad = odd_numbers(mask.shape, dtype)
        gradient = parameter.grad
        keep.on_gradient(parameter)
        assert_zeroed(keep, gradient, mask)  # again: nothing changes
        assert not gradient[~mask].any()
        assert_zeroed(keep, parameter.detach(), mask)


@pytest.mark.parametrize("size", [4, 200])
def test_any_layout_and_a_change_of_type(size):
    mask = torch.rand(size, size, 3, 3) < 0.5 / MIN_ELEMENTS_PER_KEPT
    keep = Keep(mask)
    parameter = nn.Parameter(odd_numbers(mask.shape, torch.float32))
    parameter.grad = torch.ones_like(parameter)
    keep.on_gradient(parameter)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        tensor = odd_numbers(mask.shape, dtype).to(memory_format=torch.channels_last)
        assert_zeroed(keep, tensor, mask)


def test_pruning_alone_stores_no_second_form_of_the_mask():
    mask = torch.rand(64, 64) < 0.5
    keep = Keep(mask)
    keep.zero_(torch.ones(64, 64))
    assert keep.mask is mask
    assert keep.indices is None
