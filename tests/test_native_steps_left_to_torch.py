"""What a native `optimizer.step()` leaves to torch: other settings, tensors and listeners."""

import pytest
import torch
from loop_parts import KINDS, Pair, backward
from step_parts import assert_same, batch_for, mlp
from torch import nn

from snip.engine.fused import update
from snip.engine.kernels.library import available

pytestmark = [
    pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set"),
    pytest.mark.usefixtures("node"),
]

UNKNOWN = [
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}),
    (torch.optim.SGD, {"lr": 0.1, "maximize": True}),
    (torch.optim.Adam, {"lr": 0.01, "amsgrad": True}),
    (torch.optim.AdamW, {"lr": torch.tensor(0.01)}),
    (torch.optim.RMSprop, {"lr": 0.01}),
]


@pytest.mark.parametrize(("kind", "settings"), UNKNOWN)
def test_what_only_torch_knows_is_left_to_it(kind, settings, native_steps):
    pair = Pair(kind, settings)
    for _ in range(4):
        pair.step()
    assert not native_steps
    assert_same(pair.fast, pair.other, 1e-4)


def test_whoever_waits_for_a_step_is_heard(native_steps):
    pair = Pair(*KINDS[1])
    heard = []
    pair.step()
    handles = [
        pair.mine.register_step_pre_hook(lambda *_: heard.append("before")),
        pair.mine.register_step_post_hook(lambda *_: heard.append("after")),
    ]
    pair.step()
    for handle in handles:
        handle.remove()
    assert heard == ["before", "after"]

    def closure() -> float:
        heard.append("closure")
        pair.backward()
        return 0.5

    assert pair.mine.step(closure) == 0.5
    pair.theirs.step()
    assert heard[2:] == ["closure"]
    assert not native_steps
    assert_same(pair.fast, pair.other)


def test_other_networks_are_left_to_torch(native_steps):
    Pair(*KINDS[1]).step()
    plain, batch = mlp(), batch_for(mlp(), 8)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        backward(plain, optimizer, batch)
        optimizer.step()
    assert not native_steps


def test_a_step_without_gradients_or_state_is_torchs(native_steps):
    pair = Pair(*KINDS[1])
    for _ in range(3):
        pair.step()
    pair.backward()
    for optimizer in (pair.mine, pair.theirs):
        optimizer.state.clear()
        optimizer.step()
        optimizer.zero_grad()
        optimizer.step()
    pair.step()
    assert_same(pair.fast, pair.other, 2e-5)


def test_a_group_that_does_not_name_its_decay_is_torchs(native_steps):
    pair = Pair(*KINDS[5])
    pair.step()
    native_steps.clear()
    pair.backward()
    del pair.mine.param_groups[0]["decoupled_weight_decay"]  # as before torch 2.7
    assert not update.Update(update.RULES[torch.optim.AdamW]).take(pair.mine, lambda p: p.grad)
    assert not native_steps


def test_large_parameters_beside_a_straight_network_are_left_to_torchs_threads(native_steps):
    pair = Pair(*KINDS[1])
    large = nn.Parameter(torch.zeros(update.MOST))
    pair.mine.add_param_group({"params": [large]})
    for _ in range(3):
        pair.backward()
        large.grad = torch.ones_like(large)
        pair.mine.step()
    assert not native_steps
    assert large[0] < 0
