"""Whatever follows torch's operations is told that it cannot follow native code."""

import copy

import pytest
import torch
from step_parts import assert_same, mlp, pair_of_networks
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import snip
from snip.common.errors import InputError
from snip.engine.kernels.library import available
from snip.engine.kernels.memory import is_fake, pointer, readable

pytestmark = pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set")


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def by_parameters(model, x):
    def total(parameters):
        return torch.func.functional_call(model, parameters, (x,)).sum()

    return torch.func.grad(total)(dict(model.named_parameters()))


def dual(model, x):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(model(forward_ad.make_dual(x, x))).tangent


def watched(model, x):
    with Watching():
        return model(x)


FOLLOWERS = {
    "functionalize": lambda model, x: torch.func.functionalize(model)(x),
    "make_fx": lambda model, x: make_fx(model)(x)(x),
    "make_fx before dispatch": lambda model, x: make_fx(model, pre_dispatch=True)(x)(x),
    "vmap": lambda model, x: torch.func.vmap(model)(x[:, None]),
    "grad": lambda model, x: torch.func.grad(lambda a: model(a).sum())(x),
    "grad by parameters": by_parameters,
    "jvp": lambda model, x: torch.func.jvp(model, (x,), (x,))[1],
    "dual numbers": dual,
    "a dispatch mode": watched,
}


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("name", FOLLOWERS)
def test_who_follows_is_told_what_to_do(name, gradients):
    fast, _, (images, _) = pair_of_networks(mlp)
    with torch.set_grad_enabled(gradients):
        with pytest.raises(InputError, match=r"snip\.densify\(model\)"):
            FOLLOWERS[name](fast, images)
        FOLLOWERS[name](snip.densify(fast), images)  # the way that it names
        assert torch.isfinite(fast(images)).all()


def test_tensors_of_another_library_are_refused_in_words():
    fast, _, (images, _) = pair_of_networks(mlp)
    with pytest.raises(InputError, match=r"snip\.densify\(model\)"):
        fast(images.to_mkldnn())
    assert is_fake(images.to_mkldnn())
    assert not readable(images.to_mkldnn())
    assert not is_fake(images.to_sparse())
    assert not readable(images.to_sparse())


def test_nothing_without_an_address_reaches_a_kernel():
    """Under functionalize a tensor says that it has a storage on the CPU, and its address is 0."""
    fast, _, (images, _) = pair_of_networks(mlp)
    layer = next(m for m in fast if hasattr(m, "packed"))
    x = images.flatten(1)

    def addressed(tensor):
        assert tensor.data_ptr() == 0
        with pytest.raises(InputError, match="x must be"):
            pointer(tensor, tensor.shape, "x")
        return tensor + 1

    torch.func.functionalize(addressed)(x)
    with torch.no_grad(), pytest.raises(InputError, match=r"snip\.densify"):
        torch.func.functionalize(layer)(x)
    assert pointer(torch.zeros(0, 3), (0, 3), "x") == 0  # nothing to read


@pytest.mark.parametrize("grads", [True, False])
@pytest.mark.parametrize(
    "follow",
    [
        lambda layer, x: torch.jit.trace(layer, x, check_trace=False),
        lambda layer, x: make_fx(layer)(x),
        lambda layer, x: torch.func.functionalize(layer)(x),
        lambda layer, x: torch.vmap(layer)(x[:, None]),
    ],
)
def test_a_layer_alone_is_not_followed_either(follow, grads):
    fast, dense, (images, _) = pair_of_networks(mlp)
    at, layer = next((i, m) for i, m in enumerate(fast) if hasattr(m, "packed"))
    x = images.flatten(1)
    with torch.set_grad_enabled(grads), pytest.raises(InputError, match=r"snip\.densify"):
        follow(layer, x)
    torch.testing.assert_close(layer(x), dense[at](x))  # nothing of it stays behind


def test_no_step_is_followed():
    fast, _, (images, labels) = pair_of_networks(mlp)
    step = snip.training_step(fast, torch.optim.SGD(fast.parameters(), lr=0.1))
    before = copy.deepcopy(fast)
    with Watching(), pytest.raises(InputError, match=r"snip\.densify\(model\)"):
        step(images, labels)
    assert_same(fast, before, 0)
