"""The zoo's networks of recurrent layers, lines, volumes, transposed and depthwise convolutions."""

import copy
import warnings

import pytest
import torch
from libraries import timm
from zoo_layers import GAN, PackedLSTM, UNet, audio, video

import snip
from snip.engine.kernels.library import available
from snip.engine.layers.packing import PackedModule
from snip.engine.layers.table import sparse_layer
from snip.masks import Masks

pytestmark = pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set")


def _timm(name, **settings):
    return lambda: timm.create_model(name, num_classes=10, drop_rate=0.0, **settings)


NETWORKS = {
    "packed-lstm": (
        lambda: PackedLSTM(20, 16),
        lambda: (torch.randint(20, (6, 9)), torch.tensor([9, 1, 4, 4, 7, 2])),
    ),
    "u-net": (lambda: UNet(4), lambda: (torch.randn(9, 3, 16, 16),)),
    "audio-1d": (audio, lambda: (torch.randn(4, 1, 1600),)),
    "video-3d": (video, lambda: (torch.randn(2, 3, 8, 16, 16),)),
    "gan": (lambda: GAN(8, 8), lambda: (torch.randn(9, 8),)),
    "mobilenet-v3": (_timm("mobilenetv3_small_050"), lambda: (torch.randn(4, 3, 48, 48),)),
    "convnext": (
        _timm("convnext_atto", depths=(1, 1, 1, 1), dims=(16, 24, 32, 40)),
        lambda: (torch.randn(2, 3, 32, 32),),
    ),
}


def pruned(model):
    """The model with a random half of the weights of every layer that can run sparse."""
    masks = {}
    for prefix, module in model.named_modules():
        if sparse_layer(module) is not None:
            for name, parameter in module.named_parameters(recurse=False):
                if parameter.ndim > 1:
                    masks[f"{prefix}.{name}"] = torch.rand(parameter.shape) < 0.5
    Masks(masks).apply(model)
    return model


def gradients(network, inputs):
    """Outputs, and the gradients of all parameters that are left."""
    network.zero_grad()
    made = network(*inputs)
    made.square().mean().backward()
    return made, {name: p.grad for name, p in network.named_parameters() if p.grad is not None}


def assert_same_gradients(found, exact, fast):
    assert found.keys() == exact.keys()
    largest = max(float(gradient.abs().max()) for gradient in exact.values())
    for name, gradient in exact.items():
        owner, _, own = name.rpartition(".")
        layer = fast.get_submodule(owner)
        kept = layer.packed[own].pack(gradient) if isinstance(layer, PackedModule) else gradient
        torch.testing.assert_close(found[name], kept, atol=1e-3 * largest, rtol=0)


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_compute_the_same_accelerated(name):
    torch.manual_seed(0)
    build, make = NETWORKS[name]
    model, inputs = pruned(build()), make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", snip.SnipWarning)
        fast = snip.accelerate(copy.deepcopy(model), inputs, ways={})
    kinds = [type(m) for m in fast.modules() if isinstance(m, PackedModule)]
    assert len(kinds) == sum(sparse_layer(m) is not None for m in model.modules())
    for training in (True, False):
        model.train(training), fast.train(training)
        (want, exact), (got, found) = gradients(model, inputs), gradients(fast, inputs)
        scale = float(want.detach().abs().max())
        torch.testing.assert_close(got, want, atol=1e-3 * scale, rtol=0)
        assert_same_gradients(found, exact, fast)
    with torch.no_grad():
        torch.testing.assert_close(fast(*inputs), model(*inputs), atol=1e-3 * scale, rtol=0)
