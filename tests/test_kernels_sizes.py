"""Sizes that kernels assume are checked before any memory is read."""

import re
from ctypes import byref

import numpy as np
import pytest
import torch

from snip.common.errors import InputError
from snip.engine import kernels
from snip.engine.kernels import constants, structs
from snip.engine.kernels.library import kernel
from snip.engine.kernels.straight import Gradients, LayerStruct, NativeNetwork
from snip.engine.kernels.winograd import WinogradShape, winograd_forward

if not kernels.available():
    pytest.skip(str(kernels.reason()), allow_module_level=True)


def straight(count: int = 1, lanes: int = 1, kind: int = constants.RECTIFIER) -> NativeNetwork:
    layers = [LayerStruct(kind=kind, inputs=4, outputs=4, values_at=-1, bias_at=-1)] * count
    return NativeNetwork(layers, lanes, 1, np.ones(4, dtype=bool))


def call_norm(lanes: int, batch: int) -> None:
    x, y, scale = torch.ones(2, 3, 5, lanes), torch.ones(2, 3, 5, lanes), torch.ones(3)
    addresses = (tensor.data_ptr() for tensor in (x, scale, scale, y))
    kernel("norm_apply")(*addresses, 3, 5 * lanes, lanes, batch, 0, 1)


def call_pool(height: int, width: int) -> None:
    window = structs.WindowStruct(kernel_h=height, kernel_w=width)
    kernel("max_pool")(None, None, None, byref(window), 0, 16, 1)


def call_conv(**sizes: int) -> None:
    plan = structs.ConvPlanStruct(**({"lanes": 16, "tile_h": 1, "tile_w": 1} | sizes))
    kernel("conv_forward")(byref(plan), *[None] * 5, 1, 0, 1)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: call_norm(12, 13), "at most 64, not 12"),
        (lambda: call_norm(128, 129), "at most 64, not 128"),
        (lambda: call_norm(0, 1), "at most 64, not 0"),
        (lambda: call_pool(16, 16), "255 positions, not 256"),
        (lambda: call_pool(0, 3), "255 positions, not 0"),
        (lambda: call_conv(lanes=0), "64 lanes, not 0"),
        (lambda: call_conv(tile_h=0), "row or more, not 0"),
        (lambda: call_conv(tile_w=0), "column or more, not 0"),
        (lambda: straight(65).forward(torch.ones(2, 4)), "64 layers, not 65"),
        (lambda: straight(1, 65).forward(torch.ones(2, 4)), "64 lanes, not 65"),
        (lambda: straight(1, 0).forward(torch.ones(2, 4)), "64 lanes, not 0"),
        (lambda: straight(kind=9).forward(torch.ones(2, 4)), "of kind 9"),
        (lambda: straight().forward(torch.ones(2, 5)), "rows of 4 features"),
        (
            lambda: Gradients(straight(), 2).fill(torch.ones(2, 4), torch.zeros(1).long()),
            "no batch of 2",
        ),
    ],
)
def test_sizes_that_kernels_assume_are_checked(call, words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        call()


LINEAR = kernels.LinearIndex.from_mask(torch.ones(3, 4) > 0)
CONV = kernels.ConvIndex(torch.ones(3, 4, 1, 1) > 0, (4, 2, 2))
SHAPE = WinogradShape(2, 3, (4, 4), (1, 1))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: kernels.rows_to_blocks(torch.ones(2, 3), lanes=0), "power of two"),
        (lambda: kernels.columns_to_blocks(torch.ones(3, 2), (3,), lanes=128), "power of two"),
        (lambda: kernels.blocks_to_rows(torch.ones(1, 3, 12), 12), "power of two"),
        (lambda: kernels.norm_train(torch.ones(2, 3, 4, 12), 13, None, None), "power of two"),
        (lambda: kernels.columns_to_blocks(torch.ones(4), (4,)), "two dimensions"),
        (lambda: kernels.Window((8, 8), (2, 2), (0, 2)), "strides"),
        (lambda: kernels.ConvIndex(CONV.mask, (4, 2, 2), lanes=128), "power of two"),
        (
            lambda: kernels.linear_forward(
                LINEAR, torch.ones(12), torch.ones(4, 2), bias=torch.ones(2)
            ),
            "bias",
        ),
        (
            lambda: kernels.conv_forward(
                CONV, torch.ones(12), torch.ones(1, 4, 2, 2, 16), 1, scale=torch.ones(3).double()
            ),
            "scale",
        ),
        (
            lambda: winograd_forward(SHAPE, torch.ones(9, 2, 3).mT, torch.ones(1, 2, 4, 4, 16), 1),
            "not of",
        ),
        (
            lambda: kernels.gru_forward(LINEAR, torch.ones(12), None, torch.ones(3, 0), LINEAR, 0),
            "at least one",
        ),
    ],
)
def test_wrong_sizes_never_reach_a_kernel(call, words: str) -> None:
    with pytest.raises(InputError, match=words):
        call()


def test_columns_whose_batch_is_not_contiguous_are_copied() -> None:
    x = torch.randn(5, 6)
    blocks = kernels.columns_to_blocks(x.t(), (6,), lanes=4)
    assert torch.equal(kernels.blocks_to_rows(blocks, 5), x)


def test_kernels_refuse_steps_that_grow():
    index = kernels.LinearIndex.from_mask(torch.ones(3, 1) > 0)
    for sizes in ([1, 2], [3], [2, 1, 0], [2, 2, -1]):
        with pytest.raises(InputError, match="a step has"):
            kernels.gru_forward(
                *(index, torch.ones(3), None, torch.zeros(3, 3), torch.zeros(1, 5), 2),
                sizes=torch.tensor(sizes),
            )
    with pytest.raises(InputError, match="gates"):
        kernels.gru_forward(
            *(index, torch.ones(3), None, torch.zeros(3, 3), torch.zeros(1, 5), 2),
            sizes=torch.tensor([2, 2]),
        )
