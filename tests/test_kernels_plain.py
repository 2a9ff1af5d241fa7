"""Sparse linear kernels on plain activations against masked dense torch in double precision."""

import pytest
import torch
import torch.nn.functional as F

from snip.common.errors import InputError
from snip.engine import kernels

if not kernels.available():
    pytest.skip(str(kernels.reason()), allow_module_level=True)

pytestmark = pytest.mark.usefixtures("instruction_set")


def assert_close(got: torch.Tensor, want: torch.Tensor) -> None:
    assert got.shape == want.shape
    if want.numel():
        error = (got.double() - want).abs().max().item() / (want.abs().max().item() + 1e-6)
        assert error < 2e-6  # False for a NaN too


def check(shape: tuple[int, int], x: torch.Tensor, density: float, *, turned: bool) -> None:
    """All results for weights of a shape [out, in], which are stored as [in, out] if turned."""
    mask = torch.rand(shape) < density
    mask[: shape[0] // 4] = False  # empty rows
    mask[:, : shape[1] // 5] = False  # and columns
    weight = (torch.randn(shape) * mask).double().requires_grad_()
    bias = torch.randn(shape[0])
    exact = x.double().detach().requires_grad_()
    want = F.linear(exact, weight, bias.double())
    dy = torch.randn(*x.shape[:-1], shape[0])
    want.backward(dy.double())
    stored = (lambda matrix: matrix.t()) if turned else (lambda matrix: matrix)
    index = kernels.LinearIndex.from_mask(stored(mask).contiguous())
    values = stored(weight.detach().float())[stored(mask)]
    got = kernels.plain_forward(index, values, x, bias=bias, turned=turned)
    assert_close(got, want.detach())
    rows, drows = kernels.as_rows(x), kernels.as_rows(dy)
    dx, dw, db = torch.empty(rows.shape), torch.empty(index.kept), torch.empty(shape[0])
    kernels.plain_backward(index, values, rows, drows, dx=dx, dw=dw, db=db, turned=turned)
    assert_close(dx.view(x.shape), exact.grad)
    assert_close(dw, stored(weight.grad)[stored(mask)])
    assert_close(db, dy.double().flatten(0, -2).sum(0))


@pytest.mark.parametrize("samples", [1, 2, 3, 4, 7, 8, 16, 17, 63, 64, 65, 200])
@pytest.mark.parametrize("density", [0.0, 0.05, 0.6, 1.0])
@pytest.mark.parametrize("turned", [False, True])
def test_plain_equals_dense(samples: int, density: float, turned: bool) -> None:
    for shape in ((1, 1), (10, 7), (33, 120), (130, 70)):
        check(shape, torch.randn(samples, shape[1]), density, turned=turned)


@pytest.mark.parametrize("turned", [False, True])
def test_plain_on_several_threads(turned: bool) -> None:
    for threads in (2, 3):
        torch.set_num_threads(threads)
        check((96, 200), torch.randn(5, 77, 200), 0.3, turned=turned)
        check((96, 200), torch.randn(2, 33, 200), 0.3, turned=turned)  # fewer tiles than threads


def test_the_same_call_gives_the_same_bits_on_several_threads() -> None:
    torch.set_num_threads(2)
    index = kernels.LinearIndex.from_mask(torch.rand(64, 96) < 0.3)
    values, x, dy = torch.randn(index.kept), torch.randn(500, 96), torch.randn(500, 64)
    found = []
    for _ in range(3):
        dw, db = torch.empty(index.kept), torch.empty(64)
        kernels.plain_backward(index, values, x, dy, dw=dw, db=db)
        found.append((dw, db))
    for dw, db in found[1:]:
        assert torch.equal(dw, found[0][0])
        assert torch.equal(db, found[0][1])


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[:, 1:],
        lambda x: x.transpose(0, 1),
        lambda x: x[..., ::2],
        lambda x: x[..., 3:40],
        lambda x: x[:1].expand(4, -1, -1),
        lambda x: torch._neg_view(x),
    ],
)
def test_views_are_read_as_they_are(view) -> None:
    x = view(torch.randn(6, 11, 48))
    check((20, x.shape[-1]), x, 0.4, turned=False)


def test_no_samples_have_no_gradient() -> None:
    index = kernels.LinearIndex.from_mask(torch.ones(3, 5) > 0)
    values, x, dy = torch.randn(15), torch.empty(0, 5), torch.empty(0, 3)
    assert kernels.plain_forward(index, values, torch.empty(2, 0, 5)).shape == (2, 0, 3)
    dx, dw, db = torch.empty(0, 5), torch.full((15,), 7.0), torch.full((3,), 7.0)
    kernels.plain_backward(index, values, x, dy, dx=dx, dw=dw, db=db)
    assert not dw.any()
    assert not db.any()


def test_earlier_calls_leave_nothing_behind() -> None:
    index = kernels.LinearIndex.from_mask(torch.ones(80, 90) > 0)
    spoiled = torch.full((64, 90), torch.nan)
    kernels.plain_forward(index, torch.ones(index.kept), spoiled)  # NaN in this thread's scratch
    kernels.plain_backward(
        index, torch.ones(index.kept), spoiled, torch.full((64, 80), torch.nan), dx=spoiled
    )
    check((33, 50), torch.randn(21, 50), 0.5, turned=False)


def test_weights_go_to_their_places_and_back() -> None:
    mask = torch.rand(13, 9) < 0.4
    index, weight = kernels.LinearIndex.from_mask(mask), torch.randn(13, 9)
    dense = torch.zeros(13, 9)
    kernels.unpack_weights(index, weight[mask], dense)
    assert torch.equal(dense, weight * mask)
    assert torch.equal(kernels.pack_weights(index, weight), weight[mask])


def test_tensors_of_another_shape_are_refused() -> None:
    index = kernels.LinearIndex.from_mask(torch.ones(3, 5) > 0)
    values, x, dy = torch.zeros(15), torch.zeros(4, 5), torch.zeros(4, 3)
    with pytest.raises(InputError, match="x must be"):
        kernels.plain_forward(index, values, torch.zeros(4, 6))
    with pytest.raises(InputError, match="x must be"):
        kernels.plain_forward(index, values, x.double())
    with pytest.raises(InputError, match="bias must be"):
        kernels.plain_forward(index, values, x, bias=torch.zeros(5))
    with pytest.raises(InputError, match="dy must be"):
        kernels.plain_backward(index, values, x, dy[:3])
    with pytest.raises(InputError, match="dx must be"):
        kernels.plain_backward(index, values, x, dy, dx=torch.zeros(4, 3))
    with pytest.raises(InputError, match="dense must be"):
        kernels.pack_weights(index, torch.zeros(5, 3))
