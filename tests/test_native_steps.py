"""`optimizer.step()` of an ordinary loop does natively what torch's own step does."""

import copy
import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from loop_parts import KINDS, Pair, backward
from step_parts import assert_same, cnn, mlp, on_graph, pair_of_networks
from torch import nn

import snip
from snip.engine.kernels.library import available

pytestmark = [
    pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set"),
    pytest.mark.usefixtures("node"),
]


@pytest.mark.parametrize("make", [mlp, cnn])
@pytest.mark.parametrize(("kind", "settings"), KINDS)
def test_steps_are_native_and_equal_torchs(make, kind, settings, native_steps):
    pair = Pair(kind, settings, make)
    for _ in range(6):
        pair.step()
    assert len(native_steps) >= 5  # torch takes the first one, if the optimiser has a state
    assert_same(pair.fast, pair.other, 2e-5)
    mine, theirs = pair.mine.state_dict(), pair.theirs.state_dict()
    assert mine["param_groups"] == theirs["param_groups"]
    torch.testing.assert_close(mine["state"], theirs["state"], rtol=1e-4, atol=1e-5)


def test_groups_schedules_clipping_and_frozen_layers(native_steps):
    fast, other, batch = pair_of_networks(mlp)
    optimizers, schedules = [], []
    for network in (fast, other):
        first, second, *rest = network.parameters()
        second.requires_grad_(False)
        groups = [{"params": [first], "lr": 0.03, "weight_decay": 0.2}, {"params": [second, *rest]}]
        optimizers.append(torch.optim.AdamW(groups, lr=0.01))
        schedules.append(torch.optim.lr_scheduler.StepLR(optimizers[-1], 2))
    calls = (fast, lambda images: on_graph(other, images))
    for _ in range(5):
        for network, call, optimizer, schedule in zip(
            (fast, other), calls, optimizers, schedules, strict=True
        ):
            backward(call, optimizer, batch)
            nn.utils.clip_grad_norm_(network.parameters(), 0.1)
            optimizer.step()
            schedule.step()
    assert len(native_steps) == 4
    assert_same(fast, other)


def test_gradients_that_are_missing_or_elsewhere(native_steps):
    pair = Pair(*KINDS[1])
    pair.step()
    for change in (lambda g: None, lambda g: g.clone(), lambda g: g[None].expand(2, -1)[0]):
        pair.backward()
        for network in (pair.fast, pair.other):
            parameter = list(network.parameters())[2]
            parameter.grad = change(parameter.grad)
        pair.mine.step()
        pair.theirs.step()
    count = next(pair.fast.parameters()).numel()
    odd = torch.zeros(4 * count + 2, dtype=torch.uint8).numpy()[2:]
    for strange in (torch.randn(2 * count)[::2], torch.frombuffer(odd, dtype=torch.float32)):
        pair.backward()
        for network in (pair.fast, pair.other):
            next(network.parameters()).grad = strange
        pair.mine.step()
        pair.theirs.step()
    assert len(native_steps) == 3  # torch reads gradients with gaps, and between other numbers
    assert_same(pair.fast, pair.other)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_tensors_that_were_replaced_are_noticed(kind, native_steps):
    settings = {"lr": 0.01, "weight_decay": 0.1}
    pair = Pair(kind, settings | ({"momentum": 0.9} if kind is torch.optim.SGD else {}))
    for i in range(6):
        if i == 2:
            for optimizer in (pair.mine, pair.theirs):
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        if i == 4:
            pair.backward()
            for p in pair.fast.parameters():
                p.data = p.data.clone()
            pair.mine.step()
            pair.theirs.step()
        pair.step()
    assert len(native_steps) == 6
    assert_same(pair.fast, pair.other)


def test_autograd_notices_the_step():
    pair = Pair(*KINDS[1])
    pair.step()
    loss = pair.fast(pair.batch[0]).square().sum()
    pair.backward()
    pair.mine.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_an_optimiser_and_its_network_are_given_back():
    pair = Pair(*KINDS[5])
    for _ in range(3):
        pair.step()
    left = [weakref.ref(pair.mine), weakref.ref(next(pair.fast.parameters()))]
    del pair
    gc.collect()
    assert [one() for one in left] == [None, None]


def test_a_fused_step_of_adam_equals_torchs(native_steps):
    fast, other, batch = pair_of_networks(cnn)
    mine, theirs = (torch.optim.AdamW(m.parameters(), lr=0.01) for m in (fast, other))
    step = snip.training_step(fast, mine)
    for _ in range(5):
        step(*batch)
        backward(lambda images: on_graph(other, images), theirs, batch)
        theirs.step()
    assert native_steps == ["adam_update"] * 4
    assert_same(fast, other)


def wide() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(2, 40, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(40, 40, 3)),
        *(nn.ReLU(), nn.Flatten(), nn.Linear(40 * 25, 7)),
    )


def test_a_part_that_all_threads_share_has_the_same_sums():
    fast, _, batch = pair_of_networks(wide, 40)  # three parts of 16 images
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 4):
            torch.set_num_threads(count)
            outputs = fast(batch[0])
            loss = F.cross_entropy(outputs, batch[1])
            found.append([outputs, *torch.autograd.grad(loss, list(fast.parameters()))])
    finally:
        torch.set_num_threads(threads)
    for others in found[1:]:
        assert all(map(torch.equal, others, found[0]))


def test_parameters_can_be_swapped():
    pair = Pair(*KINDS[1])
    pair.step()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        del pair.mine
        pair.fast.zero_grad()
        pair.fast.double()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert next(pair.fast.parameters()).dtype == torch.float64
