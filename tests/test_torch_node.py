"""The node of autograd in C++: it is that of Python, and is loaded only where it was built for."""

import gc
import shutil
import weakref

import pytest
import torch
import torch.nn.functional as F
from step_parts import cnn, mlp, pair_of_networks

import snip
from snip.engine import build, kernels
from snip.engine.kernels.extension import extension, forget_extension

pytestmark = pytest.mark.skipif(
    extension() is None,
    reason=kernels.reason() or "no node was built for this torch: python -m snip.engine.build",
)


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A copy of the library that a test may change, in the place where it is looked for."""
    copied = tmp_path / "_node.so"
    shutil.copy(build.NODE_LIBRARY, copied)
    monkeypatch.setattr(build, "NODE_LIBRARY", copied)
    forget_extension()
    yield copied
    monkeypatch.undo()
    forget_extension()


def in_python(monkeypatch, make):
    """The networks of `pair_of_networks`: the first with a node in C++, the second in Python."""
    fast, other, batch = pair_of_networks(make)
    fast(batch[0])  # its program is made here
    monkeypatch.setenv("SNIP_NODE", "python")
    forget_extension()
    other(batch[0])
    monkeypatch.undo()
    forget_extension()
    return fast, other, batch


@pytest.mark.parametrize("make", [mlp, cnn])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_training_has_the_same_bits(make, kind, monkeypatch):
    networks = *_, (images, labels) = in_python(monkeypatch, make)
    optimizers = [kind(network.parameters(), lr=0.01) for network in networks[:2]]
    for _ in range(5):
        names = []
        for network, optimizer in zip(networks[:2], optimizers, strict=True):
            outputs = network(images)
            names.append(isinstance(outputs.grad_fn, torch.autograd.function.BackwardCFunction))
            optimizer.zero_grad()
            F.cross_entropy(outputs, labels).backward()
            optimizer.step()
        assert names == [False, True]  # whether the node is Python's
    for p, q in zip(*(network.parameters() for network in networks[:2]), strict=True):
        assert torch.equal(p, q)
        assert torch.equal(p.grad, q.grad)


class Silent(torch.autograd.Function):
    """Passes no gradient on."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, _gradient):
        return None


def test_gradients_that_are_unusual(monkeypatch):
    *networks, (images, _) = in_python(monkeypatch, mlp)
    given = torch.randn(len(images), 7)
    incoming = {
        "none": (Silent.apply, given),
        "expanded": (lambda y: y, torch.ones(1, 7).expand(len(images), 7)),
        "turned": (lambda y: y, given.t().contiguous().t()),
        "negated": (lambda y: y, torch._neg_view(given)),
    }
    for name, (follow, gradient) in incoming.items():
        found = []
        for network in networks:
            outputs, parameters = follow(network(images)), list(network.parameters())
            found.append(torch.autograd.grad(outputs, parameters, gradient, allow_unused=True))
        for one, two in zip(*found, strict=True):
            assert (one is None) == (two is None), name
            assert one is None or torch.equal(one, two), name


def test_a_kernel_that_refuses_is_heard():
    fast, _, (images, labels) = pair_of_networks(mlp)
    loss = F.cross_entropy(fast(images), labels)
    _, program = fast.snip_conversion.straight._last[True]
    lanes, program.native.struct.lanes = program.native.struct.lanes, 65
    with pytest.raises(snip.InputError, match="1 to 64 lanes, not 65"):
        loss.backward()
    with pytest.raises(snip.InputError, match="1 to 64 lanes, not 65"):
        fast(images)
    program.native.struct.lanes = lanes
    F.cross_entropy(fast(images), labels).backward()


def test_inputs_of_other_rows_are_refused():
    fast, _, (images, _) = pair_of_networks(mlp)
    fast(images)
    _, program = fast.snip_conversion.straight._last[True]
    with pytest.raises(snip.InputError, match="rows of 64 features"):
        program.differentiable(images[:, :, :4].contiguous())


def test_what_a_hook_on_saved_tensors_raises_is_raised():
    fast, _, (images, _) = pair_of_networks(mlp)

    def refuse(_tensor: torch.Tensor) -> None:
        raise KeyError("not to be saved")

    with (
        torch.autograd.graph.saved_tensors_hooks(refuse, refuse),
        pytest.raises(KeyError, match="not to be saved"),
    ):
        fast(images)
    assert fast(images).requires_grad


def test_a_network_that_keeps_its_outputs_is_given_back():
    fast, _, (images, _) = pair_of_networks(mlp)
    fast.outputs = fast(images)
    left = weakref.ref(fast)
    del fast
    gc.collect()
    assert left() is None


def test_memory_is_taken_over_once_it_is_free():
    fast, _, (images, _) = pair_of_networks(mlp)
    places = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: (places.append(t.data_ptr()) or t) if t.dim() == 1 and t.numel() > 4000 else t,
        lambda t: t,
    ):
        waiting = fast(images)
        fast(images)
        fast(images)
        del waiting
    assert len(places) == 3
    assert places[0] != places[1] == places[2]


def test_a_library_for_another_torch_is_not_loaded(library):
    assert extension() is not None
    content = library.read_bytes()[: -len(build.SEAL) - 32]
    version = f"torch {torch.__version__}".encode()
    assert version in content
    library.unlink()  # a file that is loaded must not change: this process would crash when it ends
    library.write_bytes(content.replace(version, b"torch 0" + version[7:]))
    build.seal(library)
    forget_extension()
    assert build.is_whole(library)
    assert extension() is None


@pytest.mark.parametrize("damage", [lambda p: p.unlink(), lambda p: p.write_bytes(b"snip")])
def test_a_library_that_is_missing_or_cut_short_is_not_loaded(library, damage):
    damage(library)
    assert extension() is None
    fast, _, (images, labels) = pair_of_networks(mlp)
    F.cross_entropy(fast(images), labels).backward()
    assert all(p.grad is not None for p in fast.parameters())


def test_one_that_cannot_be_built_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "find_compiler", lambda: None)
    with pytest.raises(OSError, match="no C\\+\\+ compiler"):
        build.build_node(tmp_path / "_node.so")


def test_compiled_autograd_is_refused_with_what_to_do():
    fast, _, (images, labels) = pair_of_networks(mlp)
    loss = F.cross_entropy(fast(images), labels)
    with (
        torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")),
        pytest.raises(NotImplementedError, match=r"SNIP_NODE=python .* snip\.densify"),
    ):
        loss.backward()
