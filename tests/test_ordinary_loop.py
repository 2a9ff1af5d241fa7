"""A straight network as one node of autograd does what its converted graph does, layer by layer."""

import copy
import gc
import io
import threading
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from test_training_step import batch_for, cnn, mlp, on_graph, pair_of_networks
from torch import nn
from torch.utils.checkpoint import checkpoint

import snip
from snip.common.errors import InputError
from snip.engine.kernels.library import available

pytestmark = [
    pytest.mark.skipif(not available(), reason="no native kernels on this machine"),
    pytest.mark.usefixtures("node"),
]

OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=5e-4),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-3),
}
NODE = "_NetworkBackward"


def is_one_node(outputs: torch.Tensor) -> bool:
    """Whether one function leads from the parameters to the outputs."""
    above = [node.name() for node, _ in outputs.grad_fn.next_functions if node is not None]
    return outputs.grad_fn.name() == NODE and set(above) == {"torch::autograd::AccumulateGrad"}


def gradients(network: nn.Module, loss: torch.Tensor) -> dict[str, torch.Tensor | None]:
    network.zero_grad()
    loss.backward()
    return {name: p.grad for name, p in network.named_parameters()}


def assert_close(found, expected, tolerance: float = 1e-6) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=tolerance, atol=tolerance, msg=name)


@pytest.mark.parametrize("make", [mlp, cnn])
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("count", [24, 100])
def test_training_equals_the_layers_one_by_one(make, kind, count):
    torch.manual_seed(0)
    fast, other, _ = pair_of_networks(make)
    mine, theirs = (OPTIMIZERS[kind](m.parameters()) for m in (fast, other))
    for step in range(6):
        images, labels = batch_for(make(), count - step)
        outputs, expected = fast(images), on_graph(other, images)
        assert is_one_node(outputs)
        assert expected.grad_fn.name() != NODE
        torch.testing.assert_close(outputs, expected, rtol=1e-5, atol=1e-6)
        norms = []
        for network, made, optimizer in ((fast, outputs, mine), (other, expected, theirs)):
            optimizer.zero_grad()
            F.cross_entropy(made, labels).backward()
            norms.append(nn.utils.clip_grad_norm_(network.parameters(), 0.5))
            optimizer.step()
        torch.testing.assert_close(*norms)
    assert_close(dict(fast.named_parameters()), dict(other.named_parameters()))


@pytest.mark.parametrize("make", [mlp, cnn])
def test_many_forwards_may_wait_for_their_backward(make):
    fast, other, _ = pair_of_networks(make)
    batches = [batch_for(make(), count) for count in (9, 30, 9, 70)]
    found = [F.cross_entropy(fast(images), labels) for images, labels in batches]
    expected = [F.cross_entropy(on_graph(other, images), labels) for images, labels in batches]
    for i in (2, 0, 3, 1):
        assert_close(gradients(fast, found[i]), gradients(other, expected[i]))
    with pytest.raises(RuntimeError, match="second time"):
        found[0].backward()


def test_one_graph_with_the_network_in_it_twice_and_backward_twice():
    fast, other, (images, _) = pair_of_networks(mlp)
    losses = [
        (call(images[:8]) * call(images[8:16])).sum()
        for call in (fast, lambda images: on_graph(other, images))
    ]
    for _ in range(2):  # the second adds to the gradients of the first
        for loss in losses:
            loss.backward(retain_graph=True)
    for p, q in zip(fast.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-5, atol=1e-5)


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


@pytest.mark.parametrize("make", [mlp, cnn])
def test_frozen_layers_have_no_gradient(make):
    fast, other, (images, labels) = pair_of_networks(make)
    names = [name for name, _ in fast.named_parameters()]
    for frozen in (names[0], names[-1], *names[:2]):
        for network in (fast, other):
            network.get_parameter(frozen).requires_grad_(False)
        found = gradients(fast, F.cross_entropy(fast(images), labels))
        expected = gradients(other, F.cross_entropy(on_graph(other, images), labels))
        assert found[frozen] is expected[frozen] is None
        trained = [name for name in names if expected[name] is not None]
        assert_close({n: found[n] for n in trained}, {n: expected[n] for n in trained})


def test_biases_of_which_some_are_gone():
    torch.manual_seed(0)
    model = cnn()
    images, labels = batch_for(model, 40)
    snip.prune(model, (images, labels), sparsity=0.6)
    fast = snip.accelerate(model, images, ways={})
    biases = [m.packed["bias"] for m in fast.modules() if hasattr(m, "packed")]
    assert any(0 < bias.kept < bias.total for bias in biases)
    other = copy.deepcopy(fast)
    found = gradients(fast, F.cross_entropy(fast(images), labels))
    assert_close(found, gradients(other, F.cross_entropy(on_graph(other, images), labels)))


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


def test_threads_train_on_the_same_network():
    fast, _, _ = pair_of_networks(cnn)
    batches = [batch_for(cnn(), 20) for _ in range(4)]
    expected, found = [], [None] * 4
    for images, labels in batches:
        loss = F.cross_entropy(fast(images), labels)
        expected.append(torch.autograd.grad(loss, list(fast.parameters())))

    def work(i: int) -> None:
        for _ in range(10):
            loss = F.cross_entropy(fast(batches[i][0]), batches[i][1])
            found[i] = torch.autograd.grad(loss, list(fast.parameters()))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, two in zip(found, expected, strict=True):
        assert all(map(torch.equal, one, two))


def test_an_optimiser_resumes():
    fast, other, batch = pair_of_networks(mlp)
    optimizers = [torch.optim.AdamW(m.parameters()) for m in (fast, other)]
    for _ in range(2):
        F.cross_entropy(fast(batch[0]), batch[1]).backward()
        optimizers[0].step()
    buffer = io.BytesIO()
    torch.save((fast.state_dict(), optimizers[0].state_dict()), buffer)
    buffer.seek(0)
    weights, state = torch.load(buffer, weights_only=True)
    other.load_state_dict(weights)
    optimizers[1].load_state_dict(state)
    for network, optimizer in zip((fast, other), optimizers, strict=True):
        optimizer.zero_grad()
        F.cross_entropy(network(batch[0]), batch[1]).backward()
        optimizer.step()
    assert_close(dict(fast.named_parameters()), dict(other.named_parameters()), 0)


def test_a_thousand_steps_take_no_more_memory_than_a_hundred():
    fast, _, (images, labels) = pair_of_networks(cnn, 10)
    optimizer = torch.optim.SGD(fast.parameters(), lr=1e-3, momentum=0.9)
    pages = Path("/proc/self/statm")  # of this process: all, resident, ...

    def after(steps: int) -> tuple[int, int]:
        """Python's objects and the megabytes of this process."""
        for i in range(steps):
            optimizer.zero_grad()
            F.cross_entropy(fast(images[: 10 - i % 3]), labels[: 10 - i % 3]).backward()
            optimizer.step()
        gc.collect()
        resident = int(pages.read_text().split()[1]) if pages.exists() else 0
        return len(gc.get_objects()), resident * 4 // 1024

    objects, megabytes = after(100)
    later_objects, later_megabytes = after(1000)  # what one step saves is 0.2 MB
    assert later_objects <= objects + 10
    assert later_megabytes <= megabytes + 20
