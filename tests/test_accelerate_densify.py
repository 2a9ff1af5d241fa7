"""`densify` builds the ordinary model anew, with today's weights and the masks held again."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from accelerate_parts import accelerated_by_squares as accelerated
from accelerate_parts import assert_equal_states, blocks
from torch import nn
from user_networks import Blocks

import snip
from snip.engine.kernels.library import available
from snip.engine.layers.packing import PackedModule

pytestmark = [
    pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set"),
    pytest.mark.usefixtures("empty_cache"),
]


def train(model, batch):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()


def settings(module):
    """The plain values among a module's attributes."""
    plain = (int, float, str, tuple, bool, list, type(None))
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, plain) and not name.startswith("_flat_weight")
    }


def test_the_original_comes_back():
    model, fast, batch = blocks()
    sparse = [name for name, layer in fast.named_modules() if isinstance(layer, PackedModule)]
    assert sparse == ["conv", "twice", "embed", "rnn", "head"]
    plain = snip.densify(fast)
    assert type(plain) is Blocks
    assert repr(plain) == repr(model)
    assert "snip_conversion" not in vars(plain)
    assert_equal_states(model.state_dict(), plain.state_dict(), rtol=0, atol=0)
    for (name, module), found in zip(model.named_modules(), plain.modules(), strict=True):
        assert type(found) is type(module), name
        assert settings(found) == settings(module), name
    torch.testing.assert_close(plain(batch[0]), model(batch[0]), rtol=0, atol=0)


def test_ties_are_kept():
    _, fast, _ = blocks()
    assert fast.again is fast.twice
    plain = snip.densify(fast)
    assert plain.again is plain.twice
    assert plain.other.weight is plain.tied.weight


def test_it_has_todays_weights_and_stands_apart():
    model, fast, batch = blocks()
    before = copy.deepcopy(model.state_dict())
    train(fast, batch)
    plain = snip.densify(fast)
    assert_equal_states(fast.state_dict(), plain.state_dict(), rtol=0, atol=0)
    assert_equal_states(before, model.state_dict(), rtol=0, atol=0)
    trained = copy.deepcopy(fast.state_dict())
    assert any(not torch.equal(trained[key], before[key]) for key in before)
    train(plain, batch)
    assert_equal_states(trained, fast.state_dict(), rtol=0, atol=0)
    train(fast, batch)
    assert_equal_states(fast.state_dict(), plain.state_dict(), rtol=1e-3, atol=1e-4)


def test_masks_are_held_again_with_their_provenance():
    model, fast, batch = blocks()
    masks = snip.held_masks(model)
    plain = snip.densify(fast)
    found = snip.held_masks(plain)
    assert found == masks
    assert found.provenance == masks.provenance
    train(plain, batch)
    masks.check(plain)
    plain.load_state_dict({k: torch.ones_like(v) for k, v in plain.state_dict().items()})
    masks.check(plain)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", snip.SnipWarning)
        again = snip.accelerate(plain, batch, ways={})  # and it can be accelerated again
    torch.testing.assert_close(again.eval()(batch[0]), plain.eval()(batch[0]))


def test_masks_that_were_given_are_held_too():
    model, batch = Blocks(), torch.randn(9, 2, 5, 6)
    names = ("conv.weight", "rnn.weight_hh_l0", "tied.weight", "embed.bias")
    masks = snip.Masks({n: torch.rand_like(model.get_parameter(n)) > 0.5 for n in names})
    masks = masks.with_provenance(method="by hand")
    masks.apply(model)
    snip.release(model)
    fast = snip.accelerate(model, batch, masks=masks, ways={})
    found = snip.held_masks(snip.densify(fast))
    assert found == masks
    assert found.provenance == masks.provenance
    assert snip.held_masks(model) is None


def test_a_network_that_came_back_dense_is_copied(monkeypatch):
    slower = {"dense": 1.0, "sparse": 2.0}
    monkeypatch.setattr("snip.engine.accelerate.step_seconds", lambda *_: slower)
    model, batch = Blocks(), (torch.randn(9, 2, 5, 6), torch.randint(0, 3, (9,)))
    masks = snip.prune(model, batch, sparsity=0.4)
    with pytest.warns(snip.SnipWarning, match="runs dense"):
        back = snip.accelerate(model, batch)
    assert back is model
    plain = snip.densify(back)
    before = copy.deepcopy(back.state_dict())
    assert snip.held_masks(plain) == masks
    assert_equal_states(before, plain.state_dict(), rtol=0, atol=0)
    train(plain, batch)
    masks.check(plain)
    assert_equal_states(before, back.state_dict(), rtol=0, atol=0)


def test_a_model_that_was_never_pruned_is_copied():
    model = Blocks()
    plain = snip.densify(torch.compile(model))
    assert type(plain) is Blocks
    assert plain is not model
    assert snip.held_masks(plain) is None
    assert_equal_states(model.state_dict(), plain.state_dict(), rtol=0, atol=0)


def test_modes_frozen_parameters_and_dtype_come_along():
    def prepare(model):
        model.norm.eval()
        model.embed.eval()

    _, fast, _ = blocks(prepare=prepare)
    assert not fast.norm.training
    assert not fast.embed.training
    assert fast.head.training
    fast.conv.weight.requires_grad_(False)
    fast.conv.eval()
    plain = snip.densify(fast.double())
    frozen = [name for name, p in plain.named_parameters() if not p.requires_grad]
    modes = [name for name, module in plain.named_modules() if not module.training]
    assert frozen == ["conv.weight"]
    assert modes == ["conv", "norm", "embed"]
    assert {p.dtype for p in plain.parameters()} == {torch.float64}


def test_a_bias_of_which_nothing_is_left_comes_back():
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.LSTM(5, 4), nn.Flatten(0))
    names = ("0.weight", "0.bias", "2.bias_ih_l0")
    masks = {n: torch.zeros_like(model.get_parameter(n), dtype=torch.bool) for n in names}
    masks["0.weight"][0] = True
    snip.Masks(masks).apply(model)
    model[0].bias.requires_grad_(False)
    body = model[:3]
    fast = snip.accelerate(body, torch.randn(3, 2, 6), masks=snip.held_masks(body), ways={})
    assert fast[0].bias is None
    plain = snip.densify(fast.double())
    assert plain[0].bias.dtype == fast.state_dict()["0.bias"].dtype == torch.float64
    assert not plain[0].bias.requires_grad
    assert plain[2].bias_ih_l0.requires_grad
    x = torch.randn(3, 2, 6, dtype=torch.float64)
    torch.testing.assert_close(plain(x)[0], fast(x)[0])


def test_hooks_and_attributes_of_a_layer_come_along():
    heard = []

    def prepare(model):
        model.head.register_forward_hook(lambda *_: heard.append("head"))
        model.conv.note = ["mine"]

    model, fast, (x, _) = blocks(prepare=prepare)
    plain = snip.densify(fast)
    assert plain.conv.note == fast.conv.note == ["mine"]
    assert plain.conv.note is not model.conv.note
    heard.clear()
    plain(x)
    assert heard == ["head"]


def test_nothing_random_is_drawn():
    _, fast, _ = blocks()
    before = torch.get_rng_state()
    snip.densify(fast)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("function", ["report", "shrink", "prune", "compact", "masks"])
def test_functions_for_ordinary_models_say_densify(function, tmp_path):
    model, images = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)), torch.randn(3, 6)
    fast = accelerated(model, images)
    calls = {
        "report": lambda: snip.report(fast, snip.held_masks(model)),
        "shrink": lambda: snip.shrink(fast, images),
        "prune": lambda: snip.prune(fast, (images, torch.zeros(3).long()), sparsity=0.9),
        "compact": lambda: snip.compact.save(fast, tmp_path / "model.snip"),
        "masks": lambda: snip.held_masks(model).apply(fast),
    }
    with pytest.raises(snip.InputError, match="densify"):
        calls[function]()


def test_densify_follows_another_dtype():
    model, images = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)), torch.randn(3, 6)
    fast = accelerated(model, images).double()
    plain = snip.densify(fast)
    assert next(plain.parameters()).dtype == torch.float64
    torch.testing.assert_close(plain(images.double()), fast(images.double()))
