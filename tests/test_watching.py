"""What is called around every optimiser's step is asked for once, and told from others' hooks."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from networks import make
from torch import nn
from torch.optim import optimizer as torch_hooks

import snip
from snip.engine.kernels.library import available
from snip.masks.holding import after_every_step, before_every_step, others_watch


def hooks():
    """All that torch calls around every step, in this order."""
    before = torch_hooks._global_optimizer_pre_hooks
    return [*before.values(), *torch_hooks._global_optimizer_post_hooks.values()]


def trained_twice():
    """Prune, accelerate and train two networks: everything of ours that watches does so."""
    for _ in range(2):
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
        batch = make("mlp")[1]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            snip.prune(model, batch, sparsity=0.5)
            fast = snip.accelerate(model, batch[0], ways={})
        optimizer = torch.optim.SGD(fast.parameters(), lr=0.1)
        for _ in range(2):
            F.cross_entropy(fast(batch[0]), batch[1]).backward()
            optimizer.step()


@pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set")
def test_ours_are_asked_for_once_and_are_not_others():
    trained_twice()
    found = hooks()
    assert found
    assert len(found) == len(set(found))
    assert not others_watch()


@pytest.mark.parametrize(
    "register",
    [
        torch_hooks.register_optimizer_step_pre_hook,
        torch_hooks.register_optimizer_step_post_hook,
    ],
)
def test_a_users_hook_is_seen_until_it_is_gone(register):
    handle = register(lambda *_: None)
    assert others_watch()
    handle.remove()
    assert not others_watch()


@pytest.mark.parametrize(
    ("watch", "place"),
    [
        (before_every_step, torch_hooks._global_optimizer_pre_hooks),
        (after_every_step, torch_hooks._global_optimizer_post_hooks),
    ],
)
def test_a_hook_is_called_once_in_every_step(watch, place):
    heard = []

    def hook(*_):
        heard.append(1)

    for _ in range(3):
        watch(hook)
    try:
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
        for _ in range(2):
            optimizer.step()
        assert heard == [1, 1]
        assert not others_watch()
    finally:
        del place[next(key for key, value in place.items() if value is hook)]
