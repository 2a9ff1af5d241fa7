"""Averages of an accelerated network's weights, however a library keeps them."""

import copy
import io

import pytest
import torch
from expected_warnings import expects
from libraries import timm
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import snip
from snip.engine.kernels.library import available

pytestmark = pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set")

DECAY = 0.5
AVERAGES = {
    "ModelEma": lambda model: timm.utils.ModelEma(model, decay=DECAY),
    "ModelEmaV2": lambda model: timm.utils.ModelEmaV2(model, decay=DECAY),
    "ModelEmaV3": lambda model: timm.utils.ModelEmaV3(model, decay=DECAY),
    "ModelEmaV3, one by one": lambda m: timm.utils.ModelEmaV3(m, decay=DECAY, foreach=False),
    "AveragedModel": lambda model: AveragedModel(
        model, multi_avg_fn=get_ema_multi_avg_fn(DECAY), use_buffers=False
    ),
}


def conv_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)
    )


def straight_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(32, 8), nn.ReLU(), nn.Linear(8, 3))


def recurrent_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(2), nn.LSTM(16, 5, batch_first=True))


IMAGES, LABELS = torch.linspace(-2, 2, 160).sin().view(5, 2, 4, 4), torch.tensor([0, 1, 2, 1, 0])


def loss_of(model, batch):
    found = model(batch[0])
    return (found[0] if isinstance(found, tuple) else found).square().mean()


def averaged(wrapped):
    return getattr(wrapped, "ema", None) or wrapped.module


def step(model, optimizer):
    optimizer.zero_grad()
    loss_of(model, (IMAGES, LABELS)).backward()
    optimizer.step()


@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize("build", [conv_net, straight_net, recurrent_net])
@expects("losses")
def test_the_average_of_an_accelerated_network_is_that_of_its_model(average, build):
    model = build()
    snip.prune(model, (IMAGES, LABELS), sparsity=0.5, loss_fn=loss_of)
    fast = snip.accelerate(model, IMAGES, ways={})
    pairs = []
    for network in (model, fast):
        ema = AVERAGES[average](network)
        pairs.append((network, torch.optim.SGD(network.parameters(), lr=0.5), ema))
    for _ in range(3):
        for network, optimizer, ema in pairs:
            step(network, optimizer)
            (ema.update_parameters if average == "AveragedModel" else ema.update)(network)
    expected, found = (averaged(ema) for _, _, ema in pairs)
    with torch.no_grad():
        torch.testing.assert_close(found.eval()(IMAGES), expected.eval()(IMAGES), atol=1e-4, rtol=0)
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(found.state_dict()[name], value, atol=1e-4, rtol=0)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(fast.state_dict()[name], value, atol=1e-4, rtol=0)


def pair_of_networks():
    model = straight_net()
    snip.prune(model, (IMAGES, LABELS), sparsity=0.5)
    return model, snip.accelerate(model, IMAGES, ways={})


def halved(fast):
    """Write to the network's state_dict; returns the weights that it should have then."""
    state = fast.state_dict()
    with torch.no_grad():
        for value in state.values():
            value.mul_(0.5)
    return {name: value.clone() for name, value in state.items()}


USES = {
    "state_dict": lambda fast: fast.state_dict(),
    "deepcopy": lambda fast: copy.deepcopy(fast).state_dict(),
    "densify": lambda fast: snip.densify(fast).state_dict(),
}


@pytest.mark.parametrize("use", USES)
def test_what_is_written_into_a_state_dict_is_taken_over(use):
    _, fast = pair_of_networks()
    expected = halved(fast)
    found = USES[use](fast)
    assert expected.keys() == found.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_what_is_written_into_a_state_dict_is_computed_with():
    model, fast = pair_of_networks()
    model.load_state_dict(halved(fast))
    torch.testing.assert_close(fast(IMAGES), model(IMAGES))
    model.load_state_dict(halved(fast))
    x = torch.randn(2, 32)
    torch.testing.assert_close(fast[1](x), model[1](x))


@pytest.mark.parametrize("build", [straight_net, recurrent_net])
@expects("losses")
def test_what_is_written_into_a_state_dict_is_trained_on(build):
    model = build()
    snip.prune(model, (IMAGES, LABELS), sparsity=0.5, loss_fn=loss_of)
    fast = snip.accelerate(model, IMAGES, ways={})
    for network in (model, fast):
        optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
        step(network, optimizer)
        halved(network)
        optimizer.step()  # with the gradients of the step before
    for name, value in model.state_dict().items():
        torch.testing.assert_close(fast.state_dict()[name], value, atol=1e-5, rtol=0)


def test_a_step_of_another_network_takes_nothing_back():
    _, fast = pair_of_networks()
    model, other = pair_of_networks()
    expected = halved(fast)
    for network in (model, other):
        step(network, torch.optim.SGD(network.parameters(), lr=0.5))
    assert fast[1].lent
    assert torch.equal(fast.state_dict()["1.weight"], expected["1.weight"])


def test_a_state_dict_that_is_only_read_changes_nothing():
    _, fast = pair_of_networks()
    optimizer = torch.optim.SGD(fast.parameters(), lr=0.5)
    state = fast.state_dict()
    torch.save(state, io.BytesIO())
    step(fast, optimizer)
    trained = {name: p.detach().clone() for name, p in fast.named_parameters()}
    state["1.weight"].zero_()  # too late: it is no part of the network any more
    fast(IMAGES)
    assert all(torch.equal(p, trained[name]) for name, p in fast.named_parameters())


def test_a_write_does_not_undo_a_step_that_was_taken_since():
    _, fast = pair_of_networks()
    state = fast.state_dict()
    with torch.no_grad():
        fast[1].weight.add_(1.0)
    state["1.weight"].zero_()
    trained = fast[1].weight.detach().clone()
    fast(IMAGES)
    assert torch.equal(fast[1].weight, trained)
