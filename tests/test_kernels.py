"""Sparse linear and convolution kernels against masked dense torch, forward and both gradients."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F

from snip.common.errors import InputError
from snip.engine import kernels
from snip.engine.kernels.library import forget_instruction_set

if not kernels.available():
    pytest.skip(str(kernels.reason()), allow_module_level=True)

TOLERANCE = 1e-4

pytestmark = pytest.mark.usefixtures("instruction_set")


def assert_close(got: torch.Tensor, want: torch.Tensor) -> None:
    assert got.shape == want.shape
    if want.numel():
        error = (got - want).abs().max().item() / (want.abs().max().item() + 1e-6)
        assert error < TOLERANCE  # False for a NaN too


def spoil_padding(blocks: torch.Tensor, batch: int) -> torch.Tensor:
    """NaN in every lane beyond the batch."""
    lanes = blocks.shape[-1]
    if batch % lanes:
        blocks[-1, ..., batch % lanes :] = math.nan
    return blocks


def check_linear(shape: tuple[int, int], batch: int, density: float, *, relu: bool) -> None:
    mask = torch.rand(shape) < density
    mask[: shape[0] // 4] = False  # empty rows
    weight = (torch.randn(shape) * mask).requires_grad_()
    x = torch.randn(batch, shape[1], requires_grad=True)
    bias = torch.randn(shape[0], requires_grad=True)
    y = F.linear(x, weight, bias)
    y = y.relu() if relu else y
    dy = torch.randn_like(y)
    y.backward(dy)
    index, values = kernels.LinearIndex.from_mask(mask), weight.detach()[mask]
    xt = kernels.rows_to_columns(x.detach())
    got = kernels.linear_forward(index, values, xt, bias=bias.detach(), relu=relu)
    dx, dw, db = torch.empty_like(xt), torch.empty(index.kept), torch.empty(shape[0])
    kernels.linear_backward(
        index, values, xt, dy.t().contiguous(), y=got if relu else None, dx=dx, dw=dw, db=db
    )
    for mine, dense in ((got.t(), y), (dx.t(), x.grad), (dw, weight.grad[mask]), (db, bias.grad)):
        assert_close(mine, dense.detach())


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 7, 8, 16, 17, 100, 259])
@pytest.mark.parametrize("density", [0.0, 0.05, 0.6, 1.0])
@pytest.mark.parametrize("relu", [False, True])
def test_linear_equals_dense(batch: int, density: float, relu: bool) -> None:
    for shape in ((1, 1), (10, 7), (33, 120)):
        check_linear(shape, batch, density, relu=relu)


def test_linear_on_several_threads() -> None:
    torch.set_num_threads(2)
    check_linear((300, 784), 100, 0.1, relu=True)


def test_linear_accumulates_into_strided_output() -> None:
    mask = torch.rand(5, 9) < 0.5
    weight, x = torch.randn(5, 9) * mask, torch.randn(9, 11)
    buffer = torch.randn(5, 40)
    before = buffer.clone()
    index = kernels.LinearIndex.from_mask(mask)
    kernels.linear_forward(index, weight[mask], x, out=buffer[:, 3:14], accumulate=True)
    assert_close(buffer[:, 3:14], before[:, 3:14] + weight @ x)
    assert torch.equal(buffer[:, :3], before[:, :3])
    assert torch.equal(buffer[:, 14:], before[:, 14:])


# channels, outputs, height, width, kernel, stride, padding, dilation, groups
CONVOLUTIONS = {
    "3x3": (5, 8, 9, 7, (3, 3), (1, 1), (1, 1), (1, 1), 1),
    "3x3 stride 2": (4, 6, 8, 9, (3, 3), (2, 2), (1, 1), (1, 1), 1),
    "5x3 all different": (4, 6, 9, 11, (5, 3), (2, 3), (2, 0), (1, 2), 2),
    "dilated": (6, 5, 11, 12, (3, 3), (1, 2), (3, 2), (3, 2), 1),
    "1x1": (8, 7, 5, 5, (1, 1), (1, 1), (0, 0), (1, 1), 1),
    "1x1 stride 2": (8, 8, 6, 7, (1, 1), (2, 2), (0, 0), (1, 1), 1),
    "depthwise": (6, 6, 8, 8, (3, 3), (1, 1), (1, 1), (1, 1), 6),
    "11x11 stride 4": (3, 8, 28, 28, (11, 11), (4, 4), (2, 2), (1, 1), 1),
    "valid 5x5": (3, 6, 12, 12, (5, 5), (1, 1), (0, 0), (1, 1), 1),
    "to one position": (6, 9, 4, 4, (4, 4), (1, 1), (0, 0), (1, 1), 1),
    "padding beyond the image": (3, 4, 2, 2, (3, 3), (1, 1), (4, 4), (1, 1), 1),
    "wide": (24, 16, 20, 33, (3, 3), (1, 1), (1, 1), (1, 1), 1),
    "many channels": (96, 64, 4, 4, (3, 3), (1, 1), (1, 1), (1, 1), 1),
}


def check_convolution(name: str, batch: int, density: float, lanes: int) -> None:
    channels, outputs, height, width, size, stride, padding, dilation, groups = CONVOLUTIONS[name]
    mask = torch.rand(outputs, channels // groups, *size) < density
    mask[outputs // 2] = False  # an output without weights
    mask[:, 0] &= groups > 1  # an input without weights
    weight = (torch.randn(mask.shape) * mask).requires_grad_()
    x = torch.randn(batch, channels, height, width, requires_grad=True)
    bias = torch.randn(outputs)
    y = F.conv2d(x, weight, bias, stride, padding, dilation, groups).relu()
    dy = torch.randn_like(y) * (y > 0)
    y.backward(dy)
    index = kernels.ConvIndex(
        mask, (channels, height, width), stride, padding, dilation, groups, lanes
    )
    values = weight.detach()[mask]
    xb = spoil_padding(kernels.rows_to_blocks(x.detach(), lanes=lanes), batch)
    db = spoil_padding(kernels.rows_to_blocks(dy.detach(), lanes=lanes), batch)
    got = kernels.conv_forward(index, values, xb, batch, bias=bias, relu=True)
    assert_close(kernels.blocks_to_rows(got, batch), y.detach())
    dx = kernels.conv_backward_input(index, values, db, batch)
    assert_close(kernels.blocks_to_rows(dx, batch), x.grad)
    assert_close(kernels.conv_backward_weights(index, xb, db, batch), weight.grad[mask])


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("density", [0.0, 0.05, 0.5, 1.0])
def test_convolution_equals_dense(name: str, density: float) -> None:
    for lanes, batch in ((16, 1), (16, 3), (16, 16), (16, 17), (1, 1), (1, 3), (4, 5), (8, 9)):
        check_convolution(name, batch, density, lanes)


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_convolution_on_several_threads(batch: int) -> None:
    torch.set_num_threads(3)
    check_convolution("wide", batch, 0.1, 16)
    check_convolution("many channels", batch, 0.1, 16)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize(("lanes", "size"), [(1, (20, 33)), (1, (9, 7)), (4, (5, 5)), (8, (7, 3))])
def test_earlier_calls_leave_nothing_behind(stride: int, lanes: int, size: tuple[int, int]) -> None:
    large = kernels.ConvIndex(torch.ones(8, 64, 3, 3) > 0, (64, 32, 32), padding=(1, 1))
    poison = torch.full((1, 64, 32, 32, 16), math.nan)
    kernels.conv_forward(large, torch.ones(large.kept), poison, 16)  # NaN in this thread's scratch
    index = kernels.ConvIndex(
        torch.ones(5, 6, 3, 3) > 0, (6, *size), (stride, stride), (1, 1), lanes=lanes
    )
    weight = torch.randn(5, 6, 3, 3, requires_grad=True)
    x = torch.randn(3, 6, *size)
    y = F.conv2d(x, weight, stride=stride, padding=1)
    dy = torch.randn_like(y)
    y.backward(dy)
    xb, db = (kernels.rows_to_blocks(t, lanes=lanes) for t in (x, dy))
    assert_close(kernels.conv_backward_weights(index, xb, db, 3), weight.grad.flatten())


def test_copies_share_the_index() -> None:
    index = kernels.ConvIndex(torch.ones(2, 2, 3, 3, dtype=torch.bool), (2, 5, 5))
    assert copy.deepcopy(index) is index


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: kernels.LinearIndex.from_mask(torch.ones(2, 2)), "bool"),
        (lambda: kernels.ConvIndex(torch.ones(2, 3, 3, 3) > 0, (4, 8, 8)), "4 input channels"),
        (lambda: kernels.ConvIndex(torch.ones(2, 4, 9, 9) > 0, (4, 8, 8)), "larger than"),
        (
            lambda: kernels.ConvIndex(torch.ones(2, 4, 3, 3) > 0, (4, 8, 8), lanes=12),
            "power of two",
        ),
    ],
)
def test_bad_masks_are_refused(make, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make()


def test_tensors_of_another_shape_or_kind_are_refused() -> None:
    index = kernels.ConvIndex(torch.ones(2, 4, 3, 3) > 0, (4, 8, 8))
    values = torch.zeros(index.kept)
    with pytest.raises(InputError, match="contiguous float32"):
        kernels.conv_forward(index, values, torch.zeros(1, 4, 8, 9, 16), 16)
    with pytest.raises(InputError, match="contiguous float32"):
        kernels.conv_forward(index, values, torch.zeros(1, 4, 8, 8, 16).double(), 16)
    with pytest.raises(InputError, match="values must be"):
        kernels.conv_forward(index, values[1:], torch.zeros(1, 4, 8, 8, 16), 16)


def test_unknown_instruction_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SNIP_KERNELS", "avx9")
    forget_instruction_set()
    with pytest.raises(InputError, match="avx9"):
        kernels.instruction_set()
