"""Training an accelerated network moves the surviving weights as in the masked dense one."""

import pytest
import torch
import torch.nn.functional as F
from accelerate_parts import assert_equal_states, pair
from torch import nn

import snip
from snip.engine.kernels.library import available
from snip.engine.layers.conv import SparseConv2d
from snip.engine.layers.linear import SparseLinear

pytestmark = [
    pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set"),
    pytest.mark.usefixtures("empty_cache"),
]


def test_only_surviving_weights_are_parameters():
    dense, fast, _ = pair("lenet-300-100")
    masks = snip.held_masks(dense)
    assert sum(p.numel() for p in fast.parameters()) == masks.kept
    assert list(fast.state_dict()) == list(dense.state_dict())


def test_training_gives_the_same_network_and_densify_brings_it_back():
    dense, fast, batch = pair("lenet-5-caffe", 20)
    for model in (dense, fast):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
        for _ in range(10):
            optimizer.zero_grad()
            F.cross_entropy(model(batch[0]), batch[1]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    plain = snip.densify(fast)
    assert type(plain) is type(dense)
    snip.held_masks(dense).check(plain)
    assert snip.held_masks(plain) == snip.held_masks(dense)
    for (name, expected), found in zip(dense.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("training", [True, False])
def test_a_copy_that_was_made_in_inference_mode_can_be_trained(training):
    dense, expected, batch = pair("lenet-300-100")
    with torch.inference_mode():
        fast = snip.accelerate(dense.train(training), batch, ways={})
        plain = snip.densify(fast)
    assert type(fast) is type(expected)
    for model in (expected.train(), fast.train(), plain.train()):
        F.cross_entropy(model(batch[0]), batch[1]).backward()
        torch.optim.SGD(model.parameters(), lr=0.05).step()
    assert_equal_states(fast.state_dict(), expected.state_dict(), rtol=1e-5, atol=1e-6)
    assert_equal_states(plain.state_dict(), fast.state_dict(), rtol=1e-3, atol=1e-4)
    assert not any(tensor.is_inference() for tensor in snip.held_masks(plain).values())


@pytest.mark.parametrize(
    "name",
    [
        "Adam",
        "AdamW",
        "RMSprop",
        "Adagrad",
        "Adadelta",
        "NAdam",
        "RAdam",
        "Adamax",
        "ASGD",
        "Rprop",
    ],
)
def test_torch_optimizers(name):
    dense, fast, batch = pair("lenet-300-100", 10)
    for model in (dense, fast):
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=1e-3)
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(batch[0]), batch[1]).backward()
            optimizer.step()
    torch.testing.assert_close(fast(batch[0]), dense(batch[0]), rtol=2e-3, atol=2e-4)


def test_layers_print_what_they_keep():
    _, fast, _ = pair("lenet-5-caffe")
    kinds = [type(layer) for layer in fast.modules()]
    assert kinds.count(SparseConv2d) == kinds.count(SparseLinear) == 2
    assert "kept=" in repr(fast)
