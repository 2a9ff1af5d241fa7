"""Layout conversions, batch norm, pooling and recurrent kernels against torch."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from snip.engine import kernels
from snip.engine.kernels.conversions import LANES

if not kernels.available():
    pytest.skip(str(kernels.reason()), allow_module_level=True)

pytestmark = pytest.mark.usefixtures("instruction_set")


def assert_close(got: torch.Tensor, want: torch.Tensor, tolerance: float = 1e-4) -> None:
    assert got.shape == want.shape
    error = (got - want).abs().max().item() / (want.abs().max().item() + 1e-6)
    assert error < tolerance


@pytest.mark.parametrize("batch", [1, 3, 16, 17, 100])
@pytest.mark.parametrize("lanes", [1, 4, 16])
def test_layouts_round_trip(batch: int, lanes: int) -> None:
    torch.set_num_threads(2)
    x = torch.randn(batch, 5, 7, 3)
    blocks = kernels.rows_to_blocks(x, lanes=lanes)
    padded = torch.zeros(math.ceil(batch / lanes) * lanes, 5, 7, 3)
    padded[:batch] = x
    assert torch.equal(blocks, padded.unflatten(0, (-1, lanes)).permute(0, 2, 3, 4, 1))
    assert torch.equal(kernels.blocks_to_rows(blocks, batch), x)
    features = kernels.blocks_to_columns(blocks, batch)
    assert torch.equal(features, x.flatten(1).t())
    assert torch.equal(kernels.columns_to_blocks(features, (5, 7, 3), lanes=lanes), blocks)
    assert torch.equal(kernels.columns_to_rows(features), x.flatten(1))
    assert torch.equal(kernels.rows_to_columns(x.flatten(1)), x.flatten(1).t())


@pytest.mark.parametrize("lanes", [1, 4, 16])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("batch", [3, 16, 21])
def test_batch_norm_equals_torch(lanes: int, relu: bool, frozen: bool, batch: int) -> None:
    x = (torch.randn(batch, 6, 5, 3) * 3 + 40).requires_grad_()
    norm = nn.BatchNorm2d(6)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    norm.running_mean.fill_(39.0)
    norm.train(not frozen)
    y = norm(x)
    y = y.relu() if relu else y
    dy = torch.randn_like(y)
    y.backward(dy)
    xb, dyb = (kernels.rows_to_blocks(t.detach(), lanes=lanes) for t in (x, dy))
    for blocks in (xb, dyb):
        if batch % lanes:
            blocks[-1, ..., batch % lanes :] = math.nan
    gamma, beta = norm.weight.detach(), norm.bias.detach()
    if frozen:
        mean, variance = norm.running_mean, norm.running_var
        scale = gamma / (variance + norm.eps).sqrt()
        got = kernels.norm_apply(xb, batch, scale, beta - mean * scale, relu=relu)
    else:
        got, mean, variance = kernels.norm_train(xb, batch, gamma, beta, eps=norm.eps, relu=relu)
        assert_close(mean, x.detach().mean((0, 2, 3)))
        assert_close(variance, x.detach().var((0, 2, 3), unbiased=False))
    assert_close(kernels.blocks_to_rows(got, batch), y.detach())
    assert torch.isfinite(got).all()  # padding became zero
    dx, dgamma, dbeta = kernels.norm_backward(
        xb, dyb, batch, gamma, beta, mean, variance, eps=norm.eps, relu=relu, frozen=frozen
    )
    assert torch.isfinite(dx).all()
    for mine, dense in ((dgamma, norm.weight.grad), (dbeta, norm.bias.grad)):
        assert_close(mine, dense)
    assert_close(kernels.blocks_to_rows(dx, batch), x.grad)


WINDOWS = {
    "2x2": kernels.Window((8, 6), (2, 2), (2, 2)),
    "3x3 overlapping, padded": kernels.Window((9, 7), (3, 3), (2, 2), (1, 1)),
    "ceil": kernels.Window((7, 9), (2, 3), (2, 2), ceil_mode=True),
    "dilated": kernels.Window((9, 9), (3, 2), (1, 2), (1, 0), (2, 3)),
}


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("lanes", [1, 16])
def test_max_pool_equals_torch(name: str, lanes: int) -> None:
    w, batch = WINDOWS[name], 18
    x = torch.randn(batch, 3, *w.in_size, requires_grad=True)
    y = F.max_pool2d(x, w.kernel, w.stride, w.padding, dilation=w.dilation, ceil_mode=w.ceil_mode)
    dy = torch.randn_like(y)
    y.backward(dy)
    got, which = kernels.max_pool(kernels.rows_to_blocks(x.detach(), lanes=lanes), batch, w)
    assert torch.equal(kernels.blocks_to_rows(got, batch), y.detach())
    dx = kernels.max_pool_backward(kernels.rows_to_blocks(dy, lanes=lanes), which, w)
    assert_close(kernels.blocks_to_rows(dx, batch), x.grad)


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("lanes", [1, 16])
def test_a_nan_wins_a_max_pool_as_in_torch(name: str, lanes: int) -> None:
    w, batch = WINDOWS[name], 18
    x = torch.randn(batch, 3, *w.in_size)
    x[torch.rand_like(x) < 0.1] = math.nan
    y = F.max_pool2d(x, w.kernel, w.stride, w.padding, dilation=w.dilation, ceil_mode=w.ceil_mode)
    got, _ = kernels.max_pool(kernels.rows_to_blocks(x, lanes=lanes), batch, w)
    torch.testing.assert_close(
        kernels.blocks_to_rows(got, batch), y, rtol=0, atol=0, equal_nan=True
    )


@pytest.mark.parametrize("size", [(4, 3), (1, 1), (37, 29)])
@pytest.mark.parametrize("lanes", [1, 2, 4, 16, 32])
def test_mean_pool_equals_torch(lanes: int, size: tuple[int, int]) -> None:
    x = torch.randn(19, 5, *size) + 1
    got = kernels.mean_pool(kernels.rows_to_blocks(x, lanes=lanes), 19)
    assert_close(got, x.mean((2, 3)).t())


@pytest.mark.parametrize("lanes", [1, 16])
def test_mean_pool_of_a_large_plane_rounds_no_more_than_torch(lanes: int) -> None:
    x = torch.rand(16, 1, 400, 500)
    exact = x.double().mean((2, 3)).t()
    got = kernels.mean_pool(kernels.rows_to_blocks(x, lanes=lanes), 16)
    assert (got - exact).abs().max() < 1e-6


@pytest.mark.parametrize("lanes", [1, 16])
def test_mean_pool_backward_equals_torch(lanes: int) -> None:
    dy = torch.randn(5, 19)
    dx = kernels.blocks_to_rows(kernels.mean_pool_backward(dy, (4, 3), lanes=lanes), 19)
    assert_close(dx, (dy.t() / 12)[:, :, None, None].expand(19, 5, 4, 3))


@pytest.mark.parametrize("batch", [3, 16, 30])
def test_relu_backward_masks_and_sums(batch: int) -> None:
    y, dy = torch.randn(2, batch, 4, 3, 3)
    g, db = torch.empty(math.ceil(batch / LANES), 4, 3, 3, LANES), torch.empty(4)
    blocks = [kernels.rows_to_blocks(t) for t in (y, dy)]
    kernels.relu_backward(blocks[1], batch, y=blocks[0], out=g, db=db)
    want = dy * (y > 0)
    assert torch.equal(kernels.blocks_to_rows(g, batch), want)
    assert_close(db, want.sum((0, 2, 3)))


def masked_cell(kind: type[nn.LSTM] | type[nn.GRU], hidden: int, inputs: int) -> nn.Module:
    cell = kind(inputs, hidden)
    with torch.no_grad():
        for weight in (cell.weight_ih_l0, cell.weight_hh_l0):
            weight.mul_(2 * (torch.rand_like(weight) < 0.3))
    return cell


def sequence(kind, batch: int, hidden: int = 10, inputs: int = 6, steps: int = 5):
    """A masked cell run by torch, and what the kernels need of it."""
    cell = masked_cell(kind, hidden, inputs)
    x = torch.randn(steps, batch, inputs)
    dh = torch.randn(steps, batch, hidden)
    out, _ = cell(x)
    out.backward(dh)
    masks = {n: getattr(cell, n).detach() != 0 for n in ("weight_ih_l0", "weight_hh_l0")}
    index = {n: kernels.LinearIndex.from_mask(m) for n, m in masks.items()}
    values = {n: getattr(cell, n).detach()[m] for n, m in masks.items()}
    columns = kernels.rows_to_columns(x.flatten(0, 1))
    dcolumns = kernels.rows_to_columns(dh.flatten(0, 1))
    return cell, masks, index, values, columns, dcolumns, out.detach().flatten(0, 1).t()


@pytest.mark.parametrize("batch", [1, 3, 8, 20])
def test_lstm_equals_torch(batch: int) -> None:
    torch.set_num_threads(2)
    cell, masks, index, values, x, dh, want = sequence(nn.LSTM, batch)
    ih, hh, hidden = "weight_ih_l0", "weight_hh_l0", cell.hidden_size
    bias = (cell.bias_ih_l0 + cell.bias_hh_l0).detach()
    gates = kernels.linear_forward(index[ih], values[ih], x, bias=bias)
    h, c = torch.zeros(2, hidden, x.shape[1] + batch)
    kernels.lstm_forward(index[hh], values[hh], gates, h, c, batch)
    assert_close(h[:, batch:], want, 1e-5)
    carries = torch.zeros(2, hidden, batch)
    dgates = kernels.lstm_backward(index[hh], values[hh], gates, c, dh, *carries, batch)
    for name, inputs in ((ih, x), (hh, h[:, : x.shape[1]])):
        dw, db = torch.empty(index[name].kept), torch.empty(4 * hidden)
        kernels.linear_backward(index[name], values[name], inputs, dgates, dw=dw, db=db)
        assert_close(dw, getattr(cell, name).grad[masks[name]])
        assert_close(db, cell.bias_hh_l0.grad)


@pytest.mark.parametrize("batch", [1, 3, 8, 20])
def test_gru_equals_torch(batch: int) -> None:
    torch.set_num_threads(2)
    cell, masks, index, values, x, dh, want = sequence(nn.GRU, batch)
    ih, hh, hidden = "weight_ih_l0", "weight_hh_l0", cell.hidden_size
    from_x = kernels.linear_forward(index[ih], values[ih], x, bias=cell.bias_ih_l0.detach())
    h = torch.zeros(hidden, x.shape[1] + batch)
    from_h = kernels.gru_forward(index[hh], values[hh], cell.bias_hh_l0.detach(), from_x, h, batch)
    assert_close(h[:, batch:], want, 1e-5)
    carry = torch.zeros(hidden, batch)
    d_x, d_h = kernels.gru_backward(index[hh], values[hh], from_x, from_h, h, dh, carry, batch)
    for name, inputs, d in ((ih, x, d_x), (hh, h[:, : x.shape[1]], d_h)):
        dw, db = torch.empty(index[name].kept), torch.empty(3 * hidden)
        kernels.linear_backward(index[name], values[name], inputs, d, dw=dw, db=db)
        assert_close(dw, getattr(cell, name).grad[masks[name]])
        assert_close(db, getattr(cell, name.replace("weight", "bias")).grad)
