"""Parameters that are connections and count in m; the others, with the reason."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import type_before_parametrizations
from torch.overrides import TorchFunctionMode

from snip.common.errors import InputError, KindError
from snip.common.text import listed
from snip.distributed.wrapped import unwrap
from snip.network.layout import is_conv1d
from snip.network.norms import NormedWeight, normed_weights, stored_parameter, why_computed

Predicate = Callable[[str, nn.Module, nn.Parameter], bool]
Place = tuple[str, nn.Module]  # a name of a parameter, and the layer that computes with it

PRUNABLE_LAYERS = (
    nn.Linear,
    nn.Bilinear,
    _ConvNd,
    nn.RNNBase,
    nn.RNNCellBase,
    nn.MultiheadAttention,
)
EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm) + ((nn.RMSNorm,) if hasattr(nn, "RMSNorm") else ())
BY_PREDICATE = "the predicate left it out"
# bias_k and bias_v of attention are learned tokens, not connections between units.
ATTENTION_TOKENS = ("bias_k", "bias_v")
# Where the code of a converted network finds the tensors that the user's forward makes itself.
CONSTANTS = "snip_conversion.constants"
WEIGHTED = (
    F.linear, F.conv1d, F.conv2d, F.conv3d,
    F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d,
)  # fmt: skip
FORWARDS = ("forward", "_conv_forward")


class Accelerated:
    """A base of the class of every network that `snip.accelerate` made."""

    snip_conversion: Any  # what the converter left on the network (`engine.accelerated.Conversion`)


def ordinary(model: nn.Module) -> nn.Module:
    """The user's own module; one that `snip.accelerate` made is refused."""
    model = unwrap(model)
    if isinstance(model, Accelerated):
        raise InputError(
            "this is an accelerated network: snip.densify(model) gives the ordinary model with its "
            "weights, which this function takes."
        )
    return model


def parameter_places(
    model: nn.Module, normed: dict[str, NormedWeight] | None = None
) -> dict[str, tuple[Place, ...]]:
    """First name of each parameter -> all (name, layer) pairs that hold it.

    A tensor stored under a norm belongs to the layer whose weight it is.
    """
    normed = normed_weights(model) if normed is None else normed
    layers = {weight.stored: weight.layer for weight in normed.values()}
    first: dict[torch.Tensor, str] = {}
    places: dict[str, tuple[Place, ...]] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        for key, parameter in module._parameters.items():
            if parameter is None:
                continue
            name = f"{prefix}.{key}" if prefix else key
            own = first.setdefault(parameter, name)
            places[own] = (*places.get(own, ()), (name, layers.get(parameter, module)))
    return places


def check_predicate(predicate: Predicate) -> None:
    """Refuse what cannot be asked about a parameter."""
    wanted = "give a function of (name, module, param)"
    if not callable(predicate) or isinstance(predicate, type):
        raise KindError(f"params is {predicate!r}: {wanted}.")
    try:
        inspect.signature(predicate).bind("name", "module", "param")
    except TypeError as error:
        raise KindError(f"params takes other arguments ({error}): {wanted}.") from error
    except ValueError:  # some functions that are not Python's do not say what they take
        return


def why_out(
    owners: tuple[Place, ...], parameter: nn.Parameter, predicate: Predicate | None
) -> str | None:
    """Reason why a parameter does not compete, or None; `owners` are its places."""
    if is_lazy(parameter):
        raise InputError(
            f"parameter {owners[0][0]!r} is lazy and has no shape yet: "
            "run the model on one batch before pruning it."
        )
    if not parameter.requires_grad:
        return "frozen (requires_grad=False)"
    if not parameter.is_floating_point():
        return f"not a real floating-point tensor ({parameter.dtype})"
    if predicate is not None:
        chosen = any(_chosen(predicate, name, module, parameter) for name, module in owners)
        return None if chosen else BY_PREDICATE
    reasons = {name: _why_layer_out(name, module) for name, module in owners}
    # A weight shared with an embedding is an embedding: one veto is enough.
    veto = next((reason for reason in reasons.values() if reason is not None), None)
    tied = [name for name, reason in reasons.items() if reason is None]
    return f"{veto}, tied to {listed(tied)}" if veto is not None and tied else veto


def _chosen(predicate: Predicate, name: str, module: nn.Module, parameter: nn.Parameter) -> bool:
    answer: object = predicate(name, module, parameter)
    if isinstance(answer, torch.Tensor) and answer.numel() != 1:
        raise KindError(
            f"params returned a tensor of shape {tuple(answer.shape)} for {name!r}: return whether "
            "the parameter is pruned, True or False."
        )
    return bool(answer)


def _why_layer_out(name: str, module: nn.Module) -> str | None:
    if isinstance(module, NORMS):
        return "normalisation layer"
    if isinstance(module, EMBEDDINGS):
        return "embedding"
    key = name.rpartition(".")[2]
    if key in ATTENTION_TOKENS:
        return "learned attention token"
    computed = why_computed(module, key)
    if computed is not None or is_conv1d(module):
        return computed
    kind = type_before_parametrizations(module).__name__
    if not isinstance(module, PRUNABLE_LAYERS):
        return f"layer type {kind} is not pruned by default"
    if is_added(module, key):
        return f"neither weight nor bias of a {kind}"
    if changes_weight(module):
        return f"layer type {kind} computes with another weight, in which zeros do not stay zero"
    return None


def changes_weight(layer: nn.Module) -> bool:
    """True if a linear layer or convolution with a forward of its own fills in zeros of its weight.

    A layer may compute a different weight from the stored one, as weight standardisation does,
    which subtracts a mean: a zero of the parameter is then no zero of the computation.

    Its forward is tried on a copy with a weight of zeros and ones. Where that fails, or shows no
    weight, nothing is known, and the layer counts as what it inherits from.
    """
    weight = layer._parameters.get("weight")
    if weight is None or not isinstance(layer, (nn.Linear, _ConvNd)) or not has_own_forward(layer):
        return False
    every_other = weight.new_zeros(weight.shape)
    every_other.view(-1)[1::2] = 1
    used = _WeightsUsed(weight.shape)
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), used:
            _twin(layer, every_other).forward(weight.new_ones(_input_shape(layer)))
    except Exception:  # a user's forward may do anything at all
        return False
    return any(bool(x[every_other == 0].any()) for x in used.weights)


def has_own_forward(layer: nn.Module) -> bool:
    """True if the layer's class computes in another way than the layer of torch that it is."""
    base = next(kind for kind in type(layer).__mro__ if kind.__module__.startswith("torch.nn.modu"))
    return any(getattr(type(layer), k, None) is not getattr(base, k, None) for k in FORWARDS)


def is_added(layer: nn.Module, key: str) -> bool:
    """True for a parameter of a linear layer or convolution that torch's layer does not have."""
    if not isinstance(layer, (nn.Linear, nn.Bilinear, _ConvNd)):
        return False
    own = layer._parameters.get(key)
    return own is not None and all(
        stored_parameter(layer, k) is not own for k in ("weight", "bias")
    )


def _twin(layer: nn.Module, weight: torch.Tensor) -> nn.Module:
    """The layer with another weight, and buffers of its own, so that the layer stays as it is."""
    twin = copy.copy(layer)
    twin._parameters = {**layer._parameters, "weight": nn.Parameter(weight)}
    twin._buffers = {k: None if x is None else x.clone() for k, x in layer._buffers.items()}
    return twin


def _input_shape(layer: Any) -> tuple[int, ...]:
    """Shape of the smallest input that a layer accepts."""
    if isinstance(layer, nn.Linear):
        return 2, layer.in_features
    spans = zip(layer.kernel_size, layer.dilation, strict=True)
    return 2, layer.in_channels, *((size - 1) * step + 1 for size, step in spans)


class _WeightsUsed(TorchFunctionMode):
    """Collects the weights of this shape with which layers are computed inside the block."""

    def __init__(self, shape: torch.Size) -> None:
        super().__init__()
        self.shape = shape
        self.weights: list[torch.Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in WEIGHTED:
            weight = args[1] if len(args) > 1 else kwargs["weight"]
            self.weights += [weight] if weight.shape == self.shape else []
        return func(*args, **kwargs)
