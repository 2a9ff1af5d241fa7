"""Zeros stay zero: through every optimiser, copy, load, dtype and memory layout."""

import copy
import io
import pickle
import warnings

import pytest
import torch
import torch.nn.functional as F
from expected_warnings import expects
from holding_parts import OPTIMIZERS, assert_zeros, optimizer_of, pruned, step
from networks import KINDS, make
from processes import run_in_processes
from torch import nn
from torch.optim import optimizer as torch_hooks

import snip
from snip.engine.kernels.library import available
from snip.masks.holding import (
    MAX_ELEMENTS_AS_BITS,
    MIN_ELEMENTS_PER_KEPT,
    Keep,
    after_every_step,
    before_every_step,
    others_watch,
)


def test_a_layer_without_connections_and_one_without_losses():
    model, batch = make("mlp")
    empty = {n: torch.zeros(p.shape).bool() for n, p in model.named_parameters()}
    masks = snip.Masks({**empty, "second.weight": torch.ones(3, 8).bool()})
    masks.apply(model)
    step(model, batch, optimizer_of("AdamW", model))
    assert_zeros(masks, model)


def test_later_masks_replace_earlier_ones_and_release_lets_go():
    model, batch, masks = pruned()
    everything = snip.Masks({n: torch.ones_like(m) for n, m in masks.items()})
    everything.apply(model)
    optimizer = optimizer_of("SGD", model)
    step(model, batch, optimizer)
    assert model.first.weight.detach()[~masks["first.weight"]].any()
    masks.apply(model)
    snip.release(model)
    assert snip.held_masks(model) is None
    assert not model.first._load_state_dict_post_hooks
    step(model, batch, optimizer)
    assert model.first.weight.detach()[~masks["first.weight"]].any()


def test_masks_are_held_once_and_forward_is_untouched():
    model, _, masks = pruned()
    twin = copy.deepcopy(model)
    held = [m.first.__dict__["_snip_held"].pairs["weight"][1] for m in (model, twin)]
    assert held[0].data_ptr() == held[1].data_ptr()
    before = masks["first.weight"].clone()
    masks["first.weight"].fill_(True)  # the caller's own copy
    assert torch.equal(snip.held_masks(model)["first.weight"], before)
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    assert not model.first._forward_pre_hooks


@expects("left out", "losses")
def test_masks_of_other_parameters_stay():
    model, batch, masks = pruned()
    model.first.requires_grad_(False)
    further = snip.prune(model, batch, sparsity=0.9)
    assert list(further) == ["second.weight", "second.bias"]
    model.first.requires_grad_(True)
    optimizer = optimizer_of("SGD", model)
    step(model, batch, optimizer)
    assert not model.first.weight.detach()[~masks["first.weight"]].any()
    further.check(model)
    narrow = snip.prune(model, batch, sparsity=0.95, params=lambda n, m, p: n == "second.weight")
    step(model, batch, optimizer)
    assert not model.first.weight.detach()[~masks["first.weight"]].any()
    narrow.check(model)


def test_a_parameter_unfrozen_later_is_watched():
    model, batch = make("mlp")
    masks = snip.prune(copy.deepcopy(model), batch, sparsity=0.7)
    model.first.requires_grad_(False)
    masks.apply(model)
    assert not model.first.weight.requires_grad
    model.first.requires_grad_(True)
    assert not model.second.weight.grad_fn
    step(model, batch, optimizer_of("Adam", model))
    masks.check(model)
    assert not model.first.weight.grad[~masks["first.weight"]].any()


@pytest.mark.parametrize("name", [o for o in OPTIMIZERS if o != "SparseAdam"])
@pytest.mark.parametrize("clip", [None, 0.1])
def test_every_optimizer_from_the_start(name, clip):
    model, batch, masks = pruned()
    optimizer = optimizer_of(name, model)
    before = model.first.weight.detach().clone()
    for _ in range(4):
        step(model, batch, optimizer, clip)
        assert_zeros(masks, model)
    assert not torch.equal(before, model.first.weight)


@pytest.mark.parametrize("name", [o for o in OPTIMIZERS if o != "SparseAdam"])
def test_every_optimizer_with_state_from_before_the_pruning(name):
    model, batch = make("mlp")
    optimizer = optimizer_of(name, model)
    for _ in range(3):
        step(model, batch, optimizer)
    masks = snip.prune(model, batch, sparsity=0.7)
    for _ in range(3):
        step(model, batch, optimizer)
        assert_zeros(masks, model)


def test_sparse_gradients_of_an_embedding():
    model = nn.Sequential(nn.Embedding(7, 4, sparse=True), nn.Flatten(), nn.Linear(12, 3))
    batch = torch.randint(0, 7, (5, 3)), torch.tensor([0, 1, 2, 1, 0])
    masks = snip.prune(
        model, batch, sparsity=0.5, params=lambda n, m, p: isinstance(m, nn.Embedding)
    )
    optimizer = torch.optim.SparseAdam(model[0].parameters(), lr=0.1)
    before = model[0].weight.detach().clone()
    for _ in range(3):
        step(model, batch, optimizer)
        masks.check(model)
    assert not torch.equal(before, model[0].weight)


@pytest.mark.parametrize("kind", KINDS)
@expects("left out", "losses")
def test_every_kind_of_network(kind):
    model, batch, masks = pruned(kind)
    optimizer = optimizer_of("SGD", model)
    for _ in range(3):
        step(model, batch, optimizer)
    assert_zeros(masks, model)


def test_training_equals_training_of_c_times_w():
    """What is held is the paper's network: the same trajectory as an explicit product c * w."""
    model, (inputs, targets), masks = pruned()
    weights = model.first.weight.detach().clone().requires_grad_()
    bias, out, out_bias = (
        p.detach().clone().requires_grad_()
        for p in (model.first.bias, model.second.weight, model.second.bias)
    )
    mine = [weights, bias, out, out_bias]
    c = [masks[n] for n in ("first.weight", "first.bias", "second.weight", "second.bias")]
    other = torch.optim.SGD(mine, lr=0.1, momentum=0.9, weight_decay=0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    for _ in range(5):
        step(model, (inputs, targets), optimizer, clip=0.05)
        other.zero_grad()
        w1, b1, w2, b2 = (p * m for p, m in zip(mine, c, strict=True))
        F.cross_entropy(F.linear(torch.tanh(F.linear(inputs, w1, b1)), w2, b2), targets).backward()
        nn.utils.clip_grad_norm_(mine, 0.05)
        other.step()
    torch.testing.assert_close(model.first.weight, weights)
    torch.testing.assert_close(model.second.weight, out)


def test_the_gradient_norm_does_not_see_pruned_weights():
    model, batch, masks = pruned()
    F.cross_entropy(model(batch[0]), batch[1]).backward()
    for name, mask in masks.items():
        assert not dict(model.named_parameters())[name].grad[~mask].any()


def test_gradient_accumulation():
    model, (inputs, targets), masks = pruned()
    optimizer = optimizer_of("Adam", model)
    for _ in range(3):
        for i in range(5):
            F.cross_entropy(model(inputs[i : i + 1]), targets[i : i + 1]).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        assert_zeros(masks, model)


def test_amp_with_a_gradient_scaler():
    model, (inputs, targets), masks = pruned()
    optimizer = optimizer_of("SGD", model)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(inputs).float(), targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        assert_zeros(masks, model)


def test_nan_in_a_pruned_gradient_cannot_come_through():
    model, _, masks = pruned()
    for p in model.parameters():
        p.data.fill_(torch.nan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    masks.check(model)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_torch_compile(backend):
    model, batch, masks = pruned()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    optimizer = optimizer_of("SGD", model)
    for _ in range(3):
        step(compiled, batch, optimizer, clip=0.1)
        assert_zeros(masks, model)
    assert snip.held_masks(compiled) == masks


@pytest.mark.filterwarnings("ignore:Profiler record function")
def test_compiled_steps_of_pruned_and_of_other_networks():
    model, batch, masks = pruned()
    for network in (model, make("mlp")[0]):
        optimizer = optimizer_of("SGD", network)
        F.cross_entropy(network(batch[0]), batch[1]).backward()
        before = [p.detach().clone() for p in network.parameters()]
        torch.compile(lambda optimizer=optimizer: optimizer.step(), backend="eager")()
        pairs = zip(before, network.parameters(), strict=True)
        assert not any(torch.equal(old, new) for old, new in pairs)
    assert_zeros(masks, model)


def test_conversions_of_type_and_layout():
    model, (inputs, targets), masks = pruned("residual")
    model = model.to(memory_format=torch.channels_last)
    optimizer = optimizer_of("SGD", model)
    step(model, (inputs, targets), optimizer)
    assert_zeros(masks, model)
    model = model.bfloat16()
    step(model, (inputs.bfloat16(), targets), optimizer_of("SGD", model))
    assert_zeros(masks, model)


def train_in_a_process(rank, count, path):
    torch.manual_seed(0)
    model, batch, masks = pruned("residual")
    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = optimizer_of("SGD", model)
    for _ in range(3):
        step(wrapped, (batch[0] + rank, batch[1]), optimizer, clip=0.1)
        masks.check(wrapped)
    torch.save({n: p.detach() for n, p in model.named_parameters()}, f"{path}/{rank}.pt")


def test_ddp_in_two_processes(tmp_path):
    run_in_processes(train_in_a_process, tmp_path)
    one, two = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    assert all(torch.equal(one[name], two[name]) for name in one)


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "torch.save": lambda m: _through_torch_save(m),
    "deepcopy of a pickle": lambda m: copy.deepcopy(pickle.loads(pickle.dumps(m))),
}


def _through_torch_save(model):
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("kind", ["mlp", "lstm", "attention"])
@expects("losses")
def test_copies_hold_their_own_zeros(way, kind):
    model, batch, masks = pruned(kind)
    twin = COPIES[way](model)
    assert snip.held_masks(twin) == masks
    assert snip.held_masks(twin).provenance == masks.provenance
    original = {n: p.detach().clone() for n, p in model.named_parameters()}
    optimizer = optimizer_of("SGD", twin)
    for _ in range(3):
        step(twin, batch, optimizer)
        assert_zeros(masks, twin)
    assert all(torch.equal(p, original[n]) for n, p in model.named_parameters())
    assert any(not torch.equal(p, original[n]) for n, p in twin.named_parameters())


def test_a_copied_part_of_a_model_holds_too():
    model, batch, masks = pruned()
    part = copy.deepcopy(model.first)
    optimizer = torch.optim.SGD(part.parameters(), lr=0.1, weight_decay=0.1)
    for _ in range(2):
        part(batch[0]).square().sum().backward()
        optimizer.step()
    assert not part.weight.detach()[~masks["first.weight"]].any()


@expects("left out", "losses")
def test_a_saved_model_is_an_ordinary_one(tmp_path):
    model, batch, masks = pruned("lstm")
    plain, _ = make("lstm")
    names = list(plain.state_dict())
    assert list(model.state_dict()) == names
    assert list(dict(model.named_buffers())) == []
    torch.save(model.state_dict(), tmp_path / "model.pt")
    plain.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True), strict=True)
    torch.testing.assert_close(plain(batch[0]), model(batch[0]))
    masks.check(plain)


@pytest.mark.parametrize("assign", [False, True])
def test_loading_a_dense_checkpoint_keeps_the_masks(assign):
    model, batch, masks = pruned()
    dense, _ = make("mlp")
    model.load_state_dict(dense.state_dict(), assign=assign)
    masks.check(model)
    for p in model.parameters():
        p.requires_grad_()
    optimizer = optimizer_of("SGD", model)
    step(model, batch, optimizer)
    assert_zeros(masks, model)
    assert snip.held_masks(model) == masks


@pytest.mark.parametrize("multi", [False, True])
def test_ema_copies(multi):
    model, batch, masks = pruned("residual")
    average = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9) if multi else None
    ema = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=average, use_buffers=True)
    optimizer = optimizer_of("SGD", model)
    for _ in range(3):
        step(model, batch, optimizer)
        ema.update_parameters(model)
    assert_zeros(masks, ema.module)


def test_loading_a_tied_weight_keeps_the_zeros():
    model = nn.Sequential(nn.Linear(6, 6, bias=False), nn.Tanh(), nn.Linear(6, 6, bias=False))
    model[2].weight = model[0].weight
    dense = copy.deepcopy(model.state_dict())
    masks = snip.prune(model, (torch.randn(4, 6), torch.tensor([0, 1, 2, 3])), sparsity=0.5)
    model.load_state_dict(dense)
    masks.check(model)
    snip.release(model)
    assert not model._load_state_dict_post_hooks


def test_saved_parameters_need_neither_the_library_nor_trust():
    model, _, _ = pruned()
    for saved in (model.state_dict(keep_vars=True), list(model.parameters())):
        buffer = io.BytesIO()
        torch.save(saved, buffer)
        buffer.seek(0)
        torch.load(buffer, weights_only=True)


ODD = (torch.nan, torch.inf, -torch.inf, -0.0, 1.5, -3.0)
DTYPES = (
    *(torch.float32, torch.float64, torch.bfloat16, torch.float16),
    *(torch.complex64, torch.complex128),
)
SHAPES = {
    "small": (24, 6),
    "number": (),
    "empty": (0, 3),
    "large": (MAX_ELEMENTS_AS_BITS // 512 + 3, 512),
}


def odd_numbers(shape, dtype):
    """Numbers of every kind that a careless zeroing would let through."""
    count = torch.Size(shape).numel()
    return torch.tensor(ODD).repeat(count // len(ODD) + 1)[:count].view(shape).to(dtype)


def assert_zeroed(keep, tensor, mask):
    expected = torch.where(mask, tensor, torch.zeros((), dtype=tensor.dtype))
    keep.zero_(tensor)
    torch.testing.assert_close(tensor, expected, rtol=0, atol=0, equal_nan=True)
    parts = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    assert not torch.signbit(parts[~mask]).any()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("density", [0.0, 0.5 / MIN_ELEMENTS_PER_KEPT, 0.5])
@pytest.mark.parametrize("dtype", DTYPES)
def test_exact_zeros_before_and_while_training(shape, density, dtype):
    mask = torch.rand(SHAPES[shape]) < density
    keep = Keep(mask)
    assert_zeroed(keep, odd_numbers(mask.shape, dtype), mask)
    parameter = nn.Parameter(odd_numbers(mask.shape, dtype))
    for _ in range(2):
        parameter.grad = odd_numbers(mask.shape, dtype)
        gradient = parameter.grad
        keep.on_gradient(parameter)
        assert_zeroed(keep, gradient, mask)  # again: nothing changes
        assert not gradient[~mask].any()
        assert_zeroed(keep, parameter.detach(), mask)


@pytest.mark.parametrize("size", [4, 200])
def test_any_layout_and_a_change_of_type(size):
    mask = torch.rand(size, size, 3, 3) < 0.5 / MIN_ELEMENTS_PER_KEPT
    keep = Keep(mask)
    parameter = nn.Parameter(odd_numbers(mask.shape, torch.float32))
    parameter.grad = torch.ones_like(parameter)
    keep.on_gradient(parameter)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        tensor = odd_numbers(mask.shape, dtype).to(memory_format=torch.channels_last)
        assert_zeroed(keep, tensor, mask)


def test_pruning_alone_stores_no_second_form_of_the_mask():
    mask = torch.rand(64, 64) < 0.5
    keep = Keep(mask)
    keep.zero_(torch.ones(64, 64))
    assert keep.mask is mask
    assert keep.indices is None


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
