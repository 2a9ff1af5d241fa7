"""OBD and L-OBS in large layers: as many images at once as fit."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from snip.methods import layer_matrices, obd
from snip.methods.layer_matrices import LayerMatrix
from snip.methods.obd import hessian_diagonal


class Sizes(TorchDispatchMode):
    """Notes the bytes of the largest tensor that is computed inside the block."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and not func.is_view:
            self.largest = max(self.largest, out.nbytes)
        return out


def convolutions() -> tuple[nn.Module, torch.Tensor]:
    """A network with activations of 16 x 6 x 64 elements."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 3, groups=2, padding=1),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3),
    )  # fmt: skip
    return model.double(), torch.randn(16, 2, 8, 8, dtype=torch.float64)


def test_obd_takes_as_many_images_at_once_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    model, images = convolutions()
    weights, batch = dict(model.named_parameters()), [(images, torch.zeros(16).long())]
    whole = hessian_diagonal(model, batch, weights)
    # The patches of an image in the two convolutions and the linear layer, and its gradients.
    image = 18 * 64 + 54 * 64 + 6 + 162
    for some in (1, 3):
        monkeypatch.setattr(obd, "MAX_PATCH_ELEMENTS", some * image + 1)
        with Sizes() as sizes:
            found = hessian_diagonal(model, batch, weights)
        torch.testing.assert_close(found, whole)
        # The activations of all images; the patches of all would be nine times as many.
        assert sizes.largest <= 8 * max(16 * 6 * 64, some * image)


@pytest.mark.parametrize("images_at_once", [1, 5])
def test_lobs_takes_as_many_images_at_once_as_fit(
    images_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = convolutions()
    layer, images = model[2], torch.randn(16, 6, 8, 8)
    weights = {"weight": layer.weight, "bias": layer.bias}
    whole, split = (LayerMatrix("", layer, weights) for _ in range(2))
    whole.see(images)
    monkeypatch.setattr(layer_matrices, "MAX_ELEMENTS", images_at_once * 2 * 27 * 64)
    with Sizes() as sizes:
        split.see(images)
    torch.testing.assert_close(split.damped_hessian(), whole.damped_hessian())
    assert split.positions == whole.positions == 16 * 64
    # The patches in float64 with a row of ones; or the input of all images with its padding.
    assert sizes.largest <= max(8 * images_at_once * 2 * 28 * 64, 4 * images.numel() * 2)


def test_the_inputs_of_a_layer_may_come_without_a_batch() -> None:
    for layer, shape in [(nn.Linear(3, 2), (3,)), (nn.Conv2d(2, 3, 2), (2, 4, 4))]:
        one, other = (LayerMatrix("", layer, dict(layer.named_parameters())) for _ in range(2))
        x = torch.randn(shape)
        one.see(x)
        other.see(x[None])
        assert torch.equal(one.hessian, other.hessian)
