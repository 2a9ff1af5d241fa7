"""The matrix of a layer, its bias with it, and H = mean y y' of what the matrix is applied to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import nn

from snip.common.errors import InputError
from snip.common.machine import memory_bytes
from snip.methods.layers import columns, is_batched, matrices, parameter_of, parts

# L-OBS' authors start their inverse from 1e6 on the diagonal, which comes to this.
DAMPING = 1e-6
COPIES = 3  # of the largest H beside all of them: its mean, its factors and its inverse


def _width(shapes: Iterable[torch.Size]) -> int:
    """K: the inputs of a group of outputs, and one more for a bias."""
    return sum(math.prod(shape[1:]) for shape in shapes)


class LayerMatrix:
    """A layer's weight and bias as one matrix [groups, O, K], where a bias is one more column.

    With it goes H of the layer's inputs, [groups, K, K].
    """

    def __init__(self, name: str, module: nn.Module, weights: Mapping[str, nn.Parameter]) -> None:
        names = {key: parameter_of(name, key) for key in ("weight", "bias")}
        self.module, self.groups = module, getattr(module, "groups", 1)
        self.shapes = {full: weights[full].shape for full in names.values() if full in weights}
        # A bias that does not compete stays as it is, and so does what it adds to the outputs.
        self.parts = [key for key, full in names.items() if full in weights]
        width = _width(self.shapes.values())
        self.hessian = torch.zeros(self.groups, width, width, dtype=torch.float64)
        self.positions = 0

    def see(self, inputs: torch.Tensor) -> None:
        """Add the inputs of one call to H, some of them at a time."""
        batch = inputs if is_batched(self.module, inputs) else inputs[None]
        each = columns(self.module, batch[:1]).numel()
        for part in parts(len(batch), each):
            x = columns(self.module, batch[part]).permute(1, 2, 0, 3).flatten(2)
            # The patches of one image alone may be too large to be copied in float64.
            for some in parts(x.shape[2], x[..., 0].numel()):
                self._add(x[..., some].double())

    def _add(self, x: torch.Tensor) -> None:
        """Add y y' of some positions, where y is a column of x, with a 1 for the bias."""
        rows = {"weight": x, "bias": torch.ones_like(x[:, :1])}
        y = torch.cat([rows[key] for key in self.parts], 1)  # [groups, K, positions]
        self.hessian += (y @ y.mT).cpu()
        self.positions += y.shape[2]

    def damped_hessian(self) -> torch.Tensor:
        """H, with what makes it invertible where an input is always zero."""
        mean = self.hessian / max(self.positions, 1)
        mean.diagonal(dim1=-2, dim2=-1).add_(DAMPING)
        return mean

    def joined(self, parts: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Tensors of the parameters' shapes side by side in one matrix."""
        flat = [parts[n].view(self.groups, shape[0] // self.groups, -1) for n, shape in self._all()]
        return torch.cat(flat, 2)

    def split(self, matrix: torch.Tensor) -> dict[str, torch.Tensor]:
        """The inverse of `joined`."""
        pieces = matrix.split([math.prod(shape[1:]) for _, shape in self._all()], 2)
        return {n: m.reshape(s) for (n, s), m in zip(self._all(), pieces, strict=True)}

    def _all(self) -> list[tuple[str, torch.Size]]:
        return list(self.shapes.items())


def require_room(method: str, model: nn.Module, weights: Mapping[str, nn.Parameter]) -> None:
    """Refuse layers whose H cannot be in this machine's memory, all of them at once."""
    needed, widths = {}, {}
    for name, module in matrices(model, weights).items():
        own = (parameter_of(name, key) for key in ("weight", "bias"))
        widths[name] = _width(weights[full].shape for full in own if full in weights)
        needed[name] = 8 * getattr(module, "groups", 1) * widths[name] ** 2
    largest = max(needed, key=needed.__getitem__)
    total = sum(needed.values()) + COPIES * needed[largest]
    if total > (there := memory_bytes() or total):
        raise InputError(
            f"method {method!r} needs {total / 1e9:.1f} GB for the second derivatives, and this "
            f"machine has {there / 1e9:.1f} GB: layer {largest!r} alone has a matrix of "
            f"{widths[largest]:,} x {widths[largest]:,}, {needed[largest] / 1e9:.1f} GB. Leave it "
            "out with params=..., or use another method, such as 'lwc' or 'snip'."
        )
