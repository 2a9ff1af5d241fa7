"""Dense convolutions train with channels innermost, and nobody sees it afterwards."""

import copy

import torch
from torch import nn

from snip.data import load
from snip.training import train
from snip.training.config import TrainConfig
from snip.training.memory_format import channels_last


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3, stride=2), nn.Flatten(), nn.LazyLinear(10)
    )


def test_convolutions_compute_in_channels_last_inside_and_are_as_before_outside():
    model, images = network(), torch.randn(8, 1, 28, 28)
    expected = model(images)
    with channels_last(model):
        hidden = model[0](images)
        # Of one input channel, both orders are contiguous: the strides decide what torch does.
        assert model[0].weight.stride() == (9, 1, 3, 1)
        assert hidden.is_contiguous(memory_format=torch.channels_last)
        assert torch.allclose(model(images), expected, atol=1e-6)
    assert all(p.is_contiguous() for p in model.parameters())
    assert model[0].weight.stride() == (9, 9, 3, 1)


def test_weights_that_are_in_another_order_already_stay_so():
    model = network()
    model(torch.randn(1, 1, 28, 28))
    model.to(memory_format=torch.channels_last)
    with channels_last(model):
        pass
    assert not model[2].weight.is_contiguous()


def test_a_training_runs_in_channels_last_and_leaves_plain_weights():
    model, seen = network(), set()
    model(torch.randn(1, 1, 28, 28))
    plain = copy.deepcopy(model)
    model[2].register_forward_hook(lambda layer, _, output: seen.add(output.stride(1)))
    config = TrainConfig(iterations=3, lr_drops=(), lr=0.01, eval_every=3)
    train(model, load("mnist"), config, progress=False)
    assert seen == {1}
    assert all(p.is_contiguous() for p in model.parameters())
    assert not torch.equal(model[2].weight, plain[2].weight)
