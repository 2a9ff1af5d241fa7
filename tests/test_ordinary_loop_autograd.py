"""A straight network as one node of autograd: what users do around its forward and backward."""

import pytest
import torch
import torch.nn.functional as F
from loop_parts import NODE, assert_close, gradients, is_one_node
from step_parts import cnn, mlp, on_graph, pair_of_networks
from torch.utils.checkpoint import checkpoint

import snip
from snip.common.errors import InputError
from snip.engine.kernels.library import available

pytestmark = [
    pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set"),
    pytest.mark.usefixtures("node"),
]


def test_gradients_of_the_inputs_go_the_ordinary_way():
    fast, other, (images, labels) = pair_of_networks(cnn)
    ours, theirs = images.clone().requires_grad_(), images.clone().requires_grad_()
    F.cross_entropy(fast(ours), labels).backward()
    F.cross_entropy(on_graph(other, theirs), labels).backward()
    assert ours.grad.any()
    assert torch.equal(ours.grad, theirs.grad)


def test_what_the_native_call_does_not_take_goes_the_ordinary_way():
    fast, _, (images, _) = pair_of_networks(mlp)
    assert is_one_node(fast(images))
    assert is_one_node(fast(images[:, :, :, ::2].repeat_interleave(2, 3).transpose(2, 3)))
    with torch.no_grad():
        assert fast(images).grad_fn is None
    assert fast.requires_grad_(False)(images).grad_fn is None
    fast.requires_grad_(True)
    assert is_one_node(fast.eval()(images))
    doubles = fast.double()(images.double())
    assert doubles.dtype == torch.float64
    assert doubles.grad_fn.name() != NODE


def test_autocast_changes_nothing():
    fast, _, (images, labels) = pair_of_networks(cnn)
    expected = gradients(fast, F.cross_entropy(fast(images), labels))
    with torch.autocast("cpu", torch.bfloat16):
        outputs = fast(images)
    assert outputs.dtype == torch.float32
    assert_close(gradients(fast, F.cross_entropy(outputs, labels)), expected, 0)


def test_weights_changed_before_the_backward_are_noticed():
    fast, _, (images, labels) = pair_of_networks(mlp)
    weight = next(fast.parameters())
    loss = F.cross_entropy(fast(images), labels)
    with torch.no_grad():
        weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    for change in (lambda w: w.clone(), lambda w: w[:3].clone(), lambda w: w.double()):
        loss = F.cross_entropy(fast(images), labels)
        kept, weight.data = weight.data, change(weight.data)
        with pytest.raises(InputError, match="between the forward and the backward"):
            loss.backward()
        weight.data = kept
    F.cross_entropy(fast(images), labels).backward()


def test_inputs_may_be_overwritten_before_the_backward():
    fast, other, (images, labels) = pair_of_networks(cnn)
    expected = gradients(other, F.cross_entropy(on_graph(other, images), labels))
    loss = F.cross_entropy(fast(images), labels)
    images.fill_(float("nan"))
    assert_close(gradients(fast, loss), expected)


def test_tensors_in_place_of_parameters_get_their_gradients():
    fast, other, (images, labels) = pair_of_networks(mlp)
    leaves = {n: p.detach().clone().requires_grad_() for n, p in fast.named_parameters()}
    doubled = {name: 2 * leaf for name, leaf in leaves.items()}
    outputs = torch.func.functional_call(fast, doubled, (images,))
    F.cross_entropy(outputs, labels).backward()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(2)
    expected = gradients(other, F.cross_entropy(on_graph(other, images), labels))
    found = {name: leaf.grad / 2 for name, leaf in leaves.items()}
    assert_close(found, expected)
    assert is_one_node(fast(images))


def test_hooks_are_heard():
    fast, _, (images, labels) = pair_of_networks(mlp)
    heard = []
    first = next(fast.parameters())
    first.register_hook(lambda gradient: heard.append("gradient"))
    first.register_post_accumulate_grad_hook(lambda _: heard.append("accumulated"))
    fast.register_full_backward_hook(lambda *_: heard.append("network"))
    F.cross_entropy(fast(images), labels).backward()
    assert sorted(heard) == ["accumulated", "gradient", "network"]


def test_recomputed_and_saved_elsewhere():
    fast, _, (images, labels) = pair_of_networks(cnn)
    expected = gradients(fast, F.cross_entropy(fast(images), labels))
    again = checkpoint(fast, images, use_reentrant=False)
    assert_close(gradients(fast, F.cross_entropy(again, labels)), expected, 0)
    with torch.autograd.graph.save_on_cpu():
        loss = F.cross_entropy(fast(images), labels)
    assert_close(gradients(fast, loss), expected, 0)


def test_a_second_derivative_is_refused():
    fast, _, (images, _) = pair_of_networks(mlp)
    weight = next(fast.parameters())
    (first,) = torch.autograd.grad(fast(images).square().sum(), weight, create_graph=True)
    with pytest.raises(snip.InputError, match="Gradients of gradients"):
        first.sum().backward()
