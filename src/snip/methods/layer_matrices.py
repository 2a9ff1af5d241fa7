"""Linear layers and convolutions as one kind: a matrix that is applied at every position.

OBD, L-OBS and SVD work on such matrices. They observe what a layer is given and what it gives, and
refuse layers that hooks cannot observe or that compute something else with their weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import nn

from snip.common.errors import InputError
from snip.network.parameters import FORWARDS, parameter_places

MATRICES = (nn.Linear, nn.Conv1d, nn.Conv2d)
MAX_ELEMENTS = 1 << 24  # of what is computed for some images at once: 64 MB in float32
# L-OBS' authors start their inverse from 1e6 on the diagonal, which comes to this.
DAMPING = 1e-6

# Given the name of a layer, its input and its output; may return another output.
Observer = Callable[[str, torch.Tensor, torch.Tensor], torch.Tensor | None]


def require_plain(
    method: str,
    model: nn.Module,
    weights: Mapping[str, nn.Parameter],
    kinds: tuple[type[nn.Module], ...],
) -> None:
    """Raise unless each parameter belongs to one layer of exactly these types, as torch has it.

    A weight that is computed from other tensors (weight norm, parametrizations) is none of the
    layer's own. A subclass may compute anything: torch's attention uses the weight of its last
    layer without calling it.
    """
    owners = parameter_places(model)
    for name in weights:
        (full, owner), *others = owners[name]
        if others:
            why = f"it takes a layer with weights of its own, and this one is {others[0][0]!r} too"
        elif owner._parameters.get(full.rpartition(".")[2]) is None or not isinstance(owner, kinds):
            known = ", ".join(kind.__name__ for kind in kinds)
            why = f"it takes plain layers of the kinds {known}, with weights of their own"
        elif type(owner) not in kinds or any(key in vars(owner) for key in FORWARDS):
            why = "it counts on torch's own forward of a layer, which this one does not run"
        else:
            continue
        raise not_taken(method, name, owner, why)


def require_called(
    method: str,
    layers: Mapping[str, nn.Module],
    weights: Mapping[str, object],
    called: Collection[str],
) -> None:
    """Raise for a layer that the network did not call, though it may compute with its weights."""
    for name, layer in layers.items():
        if name not in called:
            why = "it watches what a layer is given and gives, but the network does not call this"
            raise not_taken(method, own_parameters(name, weights)[0], layer, f"{why} layer")


def not_taken(method: str, name: str, layer: nn.Module, why: str) -> InputError:
    """Make the error for a parameter of a layer that a method cannot take."""
    return InputError(
        f"method {method!r} cannot take {name!r}, which a {type(layer).__name__} has: {why}. "
        "Leave it out with params=..., or use another method, such as 'lwc' or 'snip'."
    )


def layers_of(model: nn.Module, weights: Mapping[str, object]) -> dict[str, nn.Module]:
    """Return the layers of these parameters by name, in the model's order."""
    owners = parameter_places(model)
    layers = {owner for name in weights for _, owner in owners[name]}
    return {name: module for name, module in model.named_modules() if module in layers}


def parameter_of(layer: str, key: str) -> str:
    """Full name of a layer's parameter; a layer that is the model itself has no name."""
    return f"{layer}.{key}" if layer else key


def own_parameters(layer: str, weights: Mapping[str, object]) -> list[str]:
    """Names of the weight and the bias of a layer, as far as they are among `weights`."""
    return [name for key in ("weight", "bias") if (name := parameter_of(layer, key)) in weights]


@contextmanager
def observed(layers: Mapping[str, nn.Module], observer: Observer) -> Iterator[None]:
    """Inside the block, call `observer(name, input, output)` whenever a layer has been called.

    It runs before the hooks of others, which may make something else of what the layer gives.
    """

    def hook(name: str) -> Callable[..., torch.Tensor | None]:
        return lambda _layer, args, kwargs, output: observer(
            name, args[0] if args else kwargs["input"], output
        )

    handles = [
        layer.register_forward_hook(hook(name), prepend=True, with_kwargs=True)
        for name, layer in layers.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def is_batched(layer: nn.Module, inputs: torch.Tensor) -> bool:
    """Return whether the inputs have a dimension for the batch, which torch's layers can omit."""
    return inputs.ndim >= {nn.Linear: 2, nn.Conv1d: 3, nn.Conv2d: 4}[type(layer)]


def columns(layer: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    """Operand of the layer's matrix, [B, groups, K, positions]; K as in weight.flatten(1).

    It is the input of a linear layer, and the patches of a convolution's input.
    """
    if isinstance(layer, nn.Linear):
        return inputs.reshape(len(inputs), -1, inputs.shape[-1]).transpose(1, 2).unsqueeze(1)
    assert isinstance(layer, nn.Conv1d | nn.Conv2d)
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    inputs = F.pad(inputs, layer._reversed_padding_repeated_twice, mode=mode)
    sizes = layer.kernel_size, layer.dilation, (0, 0), layer.stride
    if inputs.ndim == 3:  # as an image of one row
        inputs = inputs.unsqueeze(2)
        sizes = (1, *sizes[0]), (1, *sizes[1]), (0, 0), (1, *sizes[3])
    patches = F.unfold(inputs, *sizes)
    return patches.view(len(inputs), layer.groups, -1, patches.shape[2])


def rows(layer: nn.Module, outputs: torch.Tensor) -> torch.Tensor:
    """Outputs of a layer, or their gradients, as [B, groups, outputs of a group, positions]."""
    if isinstance(layer, nn.Linear):
        return outputs.reshape(len(outputs), -1, outputs.shape[-1]).transpose(1, 2).unsqueeze(1)
    assert isinstance(layer, nn.Conv1d | nn.Conv2d)
    return outputs.reshape(len(outputs), layer.groups, layer.out_channels // layer.groups, -1)


class LayerMatrix:
    """A layer's weight and bias as one matrix [groups, O, K], where a bias is one more column.

    With it goes H, [groups, K, K], the mean of y y' over the columns y that it is applied to.
    """

    def __init__(self, name: str, module: nn.Module, weights: Mapping[str, nn.Parameter]) -> None:
        self.module, self.groups = module, getattr(module, "groups", 1)
        # A bias that does not compete stays as it is, and so does what it adds to the outputs.
        self.shapes = {full: weights[full].shape for full in own_parameters(name, weights)}
        self.widths = [math.prod(shape[1:]) for shape in self.shapes.values()]
        self.has_weight = parameter_of(name, "weight") in weights
        self.has_bias = parameter_of(name, "bias") in weights
        width = sum(self.widths)
        self.hessian = torch.zeros(self.groups, width, width, dtype=torch.float64)
        self.positions = 0

    def see(self, inputs: torch.Tensor) -> None:
        """Add the inputs of one call to H, the patches of some images at a time."""
        batch = inputs if is_batched(self.module, inputs) else inputs[None]
        images = max(1, MAX_ELEMENTS // max(1, columns(self.module, batch[:1]).numel()))
        for some in batch.split(images):
            x = columns(self.module, some).permute(1, 2, 0, 3).flatten(2).double()
            y = [x] * self.has_weight + [torch.ones_like(x[:, :1])] * self.has_bias
            joined = torch.cat(y, 1)  # [groups, K, positions]
            self.hessian += (joined @ joined.mT).cpu()
            self.positions += joined.shape[2]

    def damped_hessian(self) -> torch.Tensor:
        """Return H, made invertible where an input is always zero."""
        mean = self.hessian / max(self.positions, 1)
        mean.diagonal(dim1=-2, dim2=-1).add_(DAMPING)
        return mean

    def joined(self, parts: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Join tensors of the parameters' shapes side by side in one matrix."""
        each = [parts[name].view(self.groups, -1, width) for name, width in self._widths()]
        return torch.cat(each, 2)

    def split(self, matrix: torch.Tensor) -> dict[str, torch.Tensor]:
        """Split what `joined` gives by parameter name."""
        pieces = matrix.split(self.widths, 2)
        return {n: m.reshape(s) for (n, s), m in zip(self.shapes.items(), pieces, strict=True)}

    def _widths(self) -> Iterator[tuple[str, int]]:
        return zip(self.shapes, self.widths, strict=True)
