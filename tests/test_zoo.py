"""Networks that people bring, accelerated: no crash in any mode or size, and the same numbers."""

import copy
import io
import warnings

import pytest
import torch
from small_zoo import SMALL_ZOO, llama, pruned, tokens
from torch import nn

import snip
from snip.engine.kernels.library import available
from snip.engine.layers.packing import PackedModule
from snip.network.calls import call, tensors_in
from snip.network.parameters import Accelerated

pytestmark = pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set")


@pytest.fixture(autouse=True)
def _own_memory(tmp_path, monkeypatch):
    monkeypatch.setenv("SNIP_CACHE", str(tmp_path))


def accelerated(model, batch, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", snip.SnipWarning)
        return snip.accelerate(model, batch, **settings)


def outputs(network, inputs):
    torch.manual_seed(0)
    return [y for y in tensors_in(call(network, inputs)) if y.is_floating_point()]


def assert_same(dense, fast, inputs, *modes):
    """Outputs agree in these modes, with and without gradients; dropout draws the same numbers."""
    for training in modes:
        for grads in (True, False):
            dense.train(training), fast.train(training)
            with torch.set_grad_enabled(grads):
                pairs = zip(outputs(fast, inputs), outputs(dense, inputs), strict=True)
            for found, expected in pairs:
                atol = 1e-3 * expected.abs().max().item() + 1e-6
                torch.testing.assert_close(found, expected, rtol=0, atol=atol)


def loss_of(network, inputs):
    return torch.stack([y.square().mean() for y in outputs(network, inputs)]).sum()


def take_step(network, inputs):
    optimizer = torch.optim.SGD(network.train().parameters(), lr=1e-2)
    loss_of(network, inputs).backward()
    optimizer.step()


def assert_same_step(model, fast, inputs):
    """Take a step of both, which moves every weight alike; rounding may turn a ReLU on or off."""
    before = copy.deepcopy(model.state_dict())
    take_step(model, inputs), take_step(fast, inputs)
    moved = {name: p.detach() - before[name] for name, p in model.named_parameters()}
    noise = 1e-4 * max(step.norm() for step in moved.values())
    state = fast.state_dict()
    for name, step in moved.items():
        off = state[name] - before[name] - step
        assert off.norm() <= 0.01 * step.norm() + noise, name


@pytest.mark.parametrize("kind", SMALL_ZOO)
def test_the_zoo(kind):
    model, example, size, other = pruned(kind)
    masks, inputs = snip.held_masks(model), example(4, size)
    fast = accelerated(model, inputs, ways={})
    assert isinstance(fast, Accelerated)
    for count, side in ((4, size), (1, size), (9, other)):
        # By the statistics of a single sample the small networks divide by next to nothing.
        assert_same(model, fast, example(count, side), *((False,) if count == 1 else (True, False)))
    assert_same_step(model, fast, inputs)
    plain = snip.densify(copy.deepcopy(fast))
    masks.check(plain)
    assert_same(plain, fast, inputs, False)
    fresh = SMALL_ZOO[kind][0]()
    fresh.load_state_dict(fast.state_dict())
    assert_same(plain, accelerated(fresh.eval(), inputs, ways={}), inputs, False)


@pytest.mark.filterwarnings("ignore::snip.SnipWarning")
@pytest.mark.parametrize("kind", SMALL_ZOO)
def test_the_defaults_leave_a_path_at_98_percent(kind):
    build, example, size, _ = SMALL_ZOO[kind]
    model, inputs = build(), example(4, size)
    masks = snip.prune(model, inputs, sparsity=0.98, loss_fn=loss_of)
    assert masks.kept == round(0.02 * masks.total)
    report = snip.report(model, masks, inputs=inputs)
    assert report.effective_kept is None or report.effective_kept > 0
    take_step(model, inputs)
    masks.check(model)
    assert_same(model, accelerated(model, inputs, ways={}), inputs, False)


@pytest.mark.parametrize("slower", [True, False])
@pytest.mark.parametrize("kind", ["attention", "packed-lstm"])
def test_whatever_the_timing_says_comes_back_and_computes_the_same(monkeypatch, kind, slower):
    monkeypatch.setattr("snip.engine.accelerate.is_slower", lambda _: slower)
    model, example, size, _ = pruned(kind)
    inputs = example(4, size)
    for training in (True, False):
        found = accelerated(model.train(training), inputs)
        assert (found is model, isinstance(found, Accelerated)) == (slower, not slower)
        assert_same(model, found, inputs, False)


@pytest.mark.parametrize("kind", ["gpt-2", "llama"])
def test_language_models_write_token_by_token(kind):
    model, example, size, _ = pruned(kind)
    fast = accelerated(model.eval(), example(8, size), ways={})
    start = example(1, 5)["input_ids"]
    settings = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    for cache in (True, False):
        expected = model.generate(start, use_cache=cache, **settings)
        assert torch.equal(fast.generate(start, use_cache=cache, **settings), expected)


def test_gradient_checkpointing_of_transformers():
    model, example, size, _ = pruned("llama")
    batch = example(4, size)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    fast = accelerated(model, batch, ways={})
    fast.train()(**batch).loss.backward()
    model.train()(**batch).loss.backward()
    name = "model.layers.0.mlp.up_proj"
    layer, dense = fast.get_submodule(name), model.get_submodule(name)
    assert isinstance(layer, PackedModule)
    expected = layer.packed["weight"].pack(dense.weight.grad)
    torch.testing.assert_close(layer.weight.grad, expected, rtol=1e-3, atol=1e-6)


def test_recording_a_transformer_says_densify():
    model, example, size, _ = pruned("bert")
    batch = example(4, size)
    fast = accelerated(model.eval(), batch, ways={})
    with pytest.raises(Exception, match="densify"):
        torch.export.export(fast, (), batch, strict=False)


def test_wrappers_and_files():
    model, example, size, _ = pruned("llama")
    batch = example(4, size)
    fast = accelerated(nn.DataParallel(model), batch, ways={})
    buffer = io.BytesIO()
    torch.save(fast, buffer)
    buffer.seek(0)
    again = torch.load(buffer, weights_only=False)
    assert_same(model, again, batch, True, False)
    assert_same(model, nn.DataParallel(fast), batch, True, False)


def test_a_second_accelerated_llama_is_of_the_same_class():
    one, two = (accelerated(m, tokens(2, 5), ways={}) for m in (pruned("llama")[0],) * 2)
    assert type(one) is type(two)
    assert isinstance(one, type(llama()))
