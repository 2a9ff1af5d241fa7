"""The optimiser of a dense network does not fit an accelerated one: it is said so."""

import copy
import gc
import pickle
import warnings
import weakref

import pytest
import torch
from accelerate_parts import mlp
from expected_warnings import expects
from torch import nn

import snip
from snip.engine.kernels.library import available
from snip.engine.layers import optimizer_state

pytestmark = [
    pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set"),
    pytest.mark.usefixtures("empty_cache"),
]

OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1),
}
IMAGES, LABELS = torch.linspace(-2, 2, 30).view(5, 6), torch.tensor([0, 1, 2, 1, 0])


def step(model, optimizer):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(IMAGES), LABELS).backward()
    optimizer.step()


def networks():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    snip.prune(model, (IMAGES, LABELS), sparsity=0.5, biases="keep")
    return model, snip.accelerate(model, IMAGES, ways={})


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize(
    "copied", [lambda n: n, copy.deepcopy, lambda n: pickle.loads(pickle.dumps(n))]
)
@expects("optimiser")
def test_the_state_of_a_dense_optimiser_is_refused_before_the_step(kind, copied):
    model, fast = networks()
    fast = copied(fast)
    dense, own = (OPTIMIZERS[kind](network.parameters()) for network in (model, fast))
    step(model, dense)
    step(fast, own)
    weights = copy.deepcopy(fast.state_dict())
    own.load_state_dict(dense.state_dict())
    words = rf"state of this {kind} is that of a dense network.*\[8, 6\].*snip\.densify"
    for _ in range(2):
        with pytest.raises(snip.InputError, match=words):
            step(fast, own)
    assert all(torch.equal(value, weights[name]) for name, value in fast.state_dict().items())
    step(snip.densify(fast), dense)


def test_optimisers_are_left_as_they_are_and_let_go():
    model, fast = networks()
    for network in (model, fast):
        optimizer = OPTIMIZERS["SGD"](network.parameters())
        attributes, known = set(vars(optimizer)), len(optimizer_state.checked)
        step(network, optimizer)
        step(network, optimizer)
        assert set(vars(optimizer)) == attributes
        assert len(optimizer_state.checked) == known + (network is fast)
        gone = weakref.ref(optimizer)
        del optimizer
        gc.collect()
        assert gone() is None
        assert len(optimizer_state.checked) == known


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_its_own_state_is_taken_back(kind):
    _, fast = networks()
    one, two = (OPTIMIZERS[kind](fast.parameters()) for _ in range(2))
    step(fast, one)
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    step(fast, two)
    step(fast, pickle.loads(pickle.dumps(two)))


def test_an_optimiser_from_before_says_that_it_trains_nothing():
    model, x = mlp(), torch.randn(5, 6)
    old = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x).sum().backward()
    old.step()
    old.zero_grad()
    fast = snip.accelerate(model, x, ways={})
    fast(x).sum().backward()
    with pytest.warns(snip.SnipWarning, match="SGD trains nothing") as caught:
        old.step()
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        old.step()  # said once
        torch.optim.SGD(fast.parameters(), lr=0.1).step()
        model(x).sum().backward()  # the dense model may train on
        old.step()
