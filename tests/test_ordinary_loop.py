"""A straight network as one node of autograd does what its converted graph does, layer by layer."""

import copy
import gc
import io
import threading
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from loop_parts import NODE, assert_close, gradients, is_one_node
from step_parts import batch_for, cnn, mlp, on_graph, pair_of_networks
from torch import nn

import snip
from snip.engine.kernels.library import available

pytestmark = [
    pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set"),
    pytest.mark.usefixtures("node"),
]

OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=5e-4),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-3),
}


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

    later_objects, later_megabytes = after(100)
    # What one step saves is 0.2 MB, so a leak takes 200 MB in each of three rounds. What the
    # process takes once, such as another arena of its allocator, is in one of them.
    for _ in range(3):
        objects, megabytes = later_objects, later_megabytes
        later_objects, later_megabytes = after(1000)
        if later_objects <= objects + 10 and later_megabytes <= megabytes + 20:
            break
    assert later_objects <= objects + 10
    assert later_megabytes <= megabytes + 20
