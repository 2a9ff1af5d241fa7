"""OBD and L-OBS in large layers: slices of bounded size, and what cannot fit is refused first."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import snip
from snip.common import machine
from snip.methods import layer_matrix, layers, obd
from snip.methods.layer_matrix import LayerMatrix, require_room
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


@pytest.mark.parametrize("kept", [0, 1 << 15, 1 << 26])
def test_obd_works_in_slices_of_bounded_size(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, images = convolutions()
    weights, batch = dict(model.named_parameters()), [(images, torch.zeros(16).long())]
    whole = hessian_diagonal(model, batch, weights)
    monkeypatch.setattr(layers, "LARGEST", 5000)
    monkeypatch.setattr(obd, "KEPT", kept)
    with Sizes() as sizes:
        found = hessian_diagonal(model, batch, weights)
    torch.testing.assert_close(found, whole)
    if kept == 0:
        assert sizes.largest <= 8 * 16 * 6 * 64  # the activations; patches are nine times as many


@pytest.mark.parametrize("largest", [300, 5000])
def test_lobs_works_in_slices_of_bounded_size(
    largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of images, and where one image is too large, of its positions."""
    model, _ = convolutions()
    layer, images = model[2], torch.randn(16, 6, 8, 8)
    weights = {"weight": layer.weight, "bias": layer.bias}
    whole, sliced = (LayerMatrix("", layer, weights) for _ in range(2))
    whole.see(images)
    monkeypatch.setattr(layers, "LARGEST", largest)
    with Sizes() as sizes:
        sliced.see(images)
    torch.testing.assert_close(sliced.damped_hessian(), whole.damped_hessian())
    assert sliced.positions == whole.positions == 16 * 64
    # An image's patches, in float32 as they are; of a slice also in float64, with a row of ones.
    assert sizes.largest <= max(4 * 2 * 27 * 64, 8 * largest * 28 / 27)


def test_the_inputs_of_a_layer_may_come_without_a_batch() -> None:
    for layer, shape in [(nn.Linear(3, 2), (3,)), (nn.Conv2d(2, 3, 2), (2, 4, 4))]:
        one, other = (LayerMatrix("", layer, dict(layer.named_parameters())) for _ in range(2))
        x = torch.randn(shape)
        one.see(x)
        other.see(x[None])
        assert torch.equal(one.hessian, other.hessian)


def test_lobs_refuses_a_matrix_that_the_machine_cannot_hold_before_anything_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = nn.Sequential(nn.Linear(400_000, 2, device="meta"), nn.Linear(2, 2))
    said = r"needs 5120\.0 GB .* has .* GB: layer '0' .* of 400,001 x 400,001, 1280\.0 GB\. Leave"
    with pytest.raises(snip.InputError, match=said):
        require_room("lobs", model, dict(model.named_parameters()))
    small, data = nn.Sequential(nn.Linear(12, 2)), [(torch.randn(6, 12), torch.arange(6) % 2)]
    monkeypatch.setattr(layer_matrix, "memory_bytes", lambda: 3000)
    with pytest.raises(snip.InputError, match="layer '0' alone has a matrix of 13 x 13"):
        snip.prune(small, data, sparsity=0.5, method="lobs")
    monkeypatch.setattr(layer_matrix, "memory_bytes", lambda: None)
    require_room("lobs", model, dict(model.named_parameters()))


def test_the_memory_of_a_container_is_the_machines(tmp_path, monkeypatch) -> None:
    whole = machine.memory_bytes()
    assert whole is None or whole > 1 << 28
    (tmp_path / "max").write_text("max\n")
    (tmp_path / "some").write_text("123456\n")
    monkeypatch.setattr(machine, "LIMITS", [str(tmp_path / name) for name in ("max", "none")])
    assert machine.memory_bytes() != 123456
    monkeypatch.setattr(machine, "LIMITS", [str(tmp_path / name) for name in ("max", "some")])
    assert machine.memory_bytes() == 123456
