"""What `accelerate` is given: a batch as the model is called, and a model that was pruned."""

import pytest
import torch
from accelerate_parts import LABELS, Calls, batch_of, masked, mlp, quietly
from torch import nn

import snip
from snip.engine.kernels.library import available
from snip.engine.layers.packing import PackedModule
from snip.models import build

pytestmark = [
    pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set"),
    pytest.mark.usefixtures("empty_cache"),
]


def test_bad_input_is_refused():
    model, batch = build("lenet-300-100", seed=0), batch_of(4, (1, 28, 28))
    with pytest.raises(snip.InputError, match="not pruned"):
        snip.accelerate(model, batch, ways={})
    masks = snip.prune(model, batch, sparsity=0.9)
    with pytest.raises(snip.InputError, match="typical batch"):
        snip.accelerate(model, None)
    with pytest.raises(snip.KindError, match=r"not a torch\.nn\.Module"):
        snip.densify(model.state_dict())
    fast = snip.accelerate(model, batch, ways={})
    with pytest.raises(snip.InputError, match="accelerated already"):
        snip.accelerate(fast, batch)
    with pytest.raises(snip.InputError, match="not applied"):
        snip.accelerate(build("lenet-300-100", seed=0), batch, masks=masks)


@pytest.mark.parametrize(
    "batch",
    [
        (torch.randn(5, 6), torch.rand(5)),
        (torch.randn(5, 6), torch.rand(5), torch.rand(5)),
        (torch.randn(5, 6), torch.rand(5), torch.rand(5), LABELS),
        [torch.randn(5, 6), torch.rand(5)],
        {"x": torch.randn(5, 6), "scale": torch.rand(5)},
    ],
)
def test_a_batch_is_given_to_the_model_as_the_user_calls_it(batch):
    model = masked(Calls())
    fast = quietly(snip.accelerate, model, batch, ways={})
    assert isinstance(fast.a, PackedModule)
    x, scale = torch.randn(7, 6), torch.rand(7)
    torch.testing.assert_close(fast(x, scale)["y"], model(x, scale)["y"], rtol=1e-4, atol=1e-5)


def test_targets_are_not_taken_for_an_optional_argument():
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

        def forward(self, x, weight=None):
            assert weight is None
            return self.b(self.a(x))

    fast = snip.accelerate(masked(Masked()), (torch.randn(5, 6), LABELS), ways={})
    assert fast.snip_conversion.run is not None  # traced, for the inputs alone


@pytest.mark.parametrize(
    ("build", "batch", "words"),
    [
        (mlp, torch.randn(5, 7), "mat1"),
        (mlp, (torch.randn(5, 7), LABELS), "mat1"),
        (mlp, {"pixels": torch.randn(5, 6)}, "pixels"),
        (lambda: masked(Calls()), (torch.randn(5, 7), torch.rand(5)), "mat1"),
        (lambda: masked(Calls()), torch.randn(5, 6), "scale"),
    ],
)
def test_a_batch_that_the_model_does_not_take_is_refused_before_anything_else(build, batch, words):
    model = build()
    snip.release(model)
    with pytest.raises(snip.InputError, match=f"does not run on this batch .*{words}"):
        snip.accelerate(model, batch)
    assert snip.held_masks(model) is None


def test_a_pruned_model_that_was_loaded_is_accelerated():
    pruned, x = mlp(), torch.randn(5, 6)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    model.load_state_dict(pruned.state_dict())
    with pytest.warns(snip.SnipWarning, match="held at zero from now on"):
        fast = snip.accelerate(model, x, ways={})
    assert snip.held_masks(model) == snip.held_masks(pruned)
    assert snip.held_masks(snip.densify(fast)) == snip.held_masks(pruned)
    torch.testing.assert_close(fast(x), pruned(x), rtol=1e-4, atol=1e-5)


def test_a_model_with_hardly_a_zero_is_not_pruned():
    model = nn.Sequential(nn.Linear(6, 80), nn.ReLU(), nn.Linear(80, 3))
    nn.init.zeros_(model[2].bias)
    with pytest.raises(snip.InputError, match=r"not pruned: .* snip\.prune.* load"):
        snip.accelerate(model, torch.randn(5, 6))
    assert snip.held_masks(model) is None
