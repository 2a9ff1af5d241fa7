"""No address of a tensor that does not fit leaves Python, and no memory is used twice."""

import pytest
import torch
from guard_parts import AT_THE_SAME_ADDRESS, in_place

from snip.common.errors import InputError
from snip.engine.kernels.library import available
from snip.engine.kernels.memory import Reused, memory_of, pointer, readable

pytestmark = pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set")


def shrunk() -> torch.Tensor:
    tensor = torch.zeros(8)
    tensor.untyped_storage().resize_(16)
    return tensor


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(8).double(),
        torch.zeros(9),
        torch.zeros(2, 4),
        torch.zeros(16)[::2],
        torch.zeros(1).expand(8),
        torch._neg_view(torch.zeros(8)),
        torch.zeros(8, device="meta"),
        shrunk(),
    ],
)
def test_no_address_of_another_tensor_leaves_python(tensor):
    with pytest.raises(InputError, match="values must be a contiguous float32 tensor"):
        pointer(tensor, (8,), "values")


def test_addresses_of_fitting_tensors():
    assert pointer(None, (8,), "values") is None
    tensor = torch.zeros(4, 8)
    assert pointer(tensor[1], (8,), "values") == tensor.data_ptr() + 32
    assert pointer(tensor[:, :3], (4, 3), "x", rows=True) == tensor.data_ptr()
    with pytest.raises(InputError, match="x must be"):
        pointer(tensor[:, ::2], (4, 4), "x", rows=True)
    assert readable(tensor)
    assert not readable(tensor, torch.int64)


@pytest.mark.parametrize("change", AT_THE_SAME_ADDRESS)
def test_another_view_at_the_same_address_is_another_memory(change):
    tensor = torch.zeros(8)
    before = memory_of(tensor)
    assert memory_of(tensor.view(8)) == before
    in_place(tensor, change)
    assert tensor.data_ptr() == before[0]
    assert memory_of(tensor) != before


def test_a_storage_of_another_size_at_the_same_address_is_another_memory():
    room = torch.zeros(16)
    small, large = room[:8].clone(), room[:8]
    assert memory_of(small)[1:] != memory_of(large)[1:]
    assert memory_of(room[:8]) != memory_of(torch.as_strided(room[4:], (8,), (1,)))


def test_memory_is_used_again_once_nobody_has_it():
    memory = Reused()
    first, address = memory.made(3, 4)
    first.fill_(1)
    graph = (first * torch.ones(1, requires_grad=True)).sum()  # saves it
    row = first[1].detach()
    del first
    second, elsewhere = memory.made(3, 4)
    assert elsewhere != address
    assert row.tolist() == [1] * 4
    graph.backward()
    del second
    third, again = memory.made(3, 4)
    assert again == elsewhere
    wide, _ = memory.made(3, 5)
    assert wide.shape == (3, 5)
    assert third.data_ptr() not in range(wide.data_ptr(), wide.data_ptr() + wide.nbytes)
