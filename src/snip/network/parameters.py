"""Which parameters are connections: what counts in m, what is left out, and why."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import type_before_parametrizations

from snip.common.errors import InputError, KindError
from snip.common.text import listed
from snip.distributed.wrappers import unwrap
from snip.network.accelerated import Accelerated
from snip.network.normed import TORCH_PRUNED, normed_weights, why_computed
from snip.network.own_forward import changes_weight, is_added

Predicate = Callable[[str, nn.Module, nn.Parameter], bool]
Owners = dict[str, list[tuple[str, nn.Module]]]

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


def prunable_parameters(
    model: nn.Module, predicate: Predicate | None = None
) -> dict[str, nn.Parameter]:
    """The parameters that count in m, in the model's order, a tied one once."""
    reasons = left_out(model, predicate)
    model = unwrap(model)
    return {name: p for name, p in model.named_parameters() if name not in reasons}


def left_out(model: nn.Module, predicate: Predicate | None = None) -> dict[str, str]:
    """Every parameter that stays out, with the reason."""
    if predicate is not None:
        _check_predicate(predicate)
    model = unwrap(model)
    owners = parameter_owners(model)
    found = {
        name: _why_out(owners[name], parameter, predicate)
        for name, parameter in model.named_parameters()
    }
    return {name: reason for name, reason in found.items() if reason is not None}


def asked_once(predicate: Predicate | None) -> Predicate | None:
    """Remember the predicate's answers by name: it may be slow, or have a state of its own."""
    if predicate is None:
        return None
    _check_predicate(predicate)
    answers: dict[str, bool] = {}

    def answer(name: str, module: nn.Module, parameter: nn.Parameter) -> bool:
        if name not in answers:
            answers[name] = _chosen(predicate, name, module, parameter)
        return answers[name]

    return answer


def refuse_torch_pruned(model: nn.Module, predicate: Predicate | None = None) -> None:
    """Of a weight that torch prunes nothing can be removed here, and its zeros count nowhere."""
    found = [name for name, why in left_out(model, predicate).items() if why == TORCH_PRUNED]
    if found:
        raise InputError(
            f"torch.nn.utils.prune has pruned this model, and computes weights from {listed(found)}"
            " before each call: snip.integrations.torch_prune.from_pruned(model) takes its pruning "
            "over, and gives an ordinary model that holds the masks."
        )


def parameter_owners(model: nn.Module) -> Owners:
    """First name of each parameter -> all (name, module) pairs that hold it.

    What is stored of a weight under a norm belongs to the layer whose weight it is.
    """
    layers = {normed.stored: normed.layer for normed in normed_weights(model).values()}
    first: dict[torch.Tensor, str] = {}
    owners: Owners = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        for key, parameter in module._parameters.items():
            if parameter is None:
                continue
            name = f"{prefix}.{key}" if prefix else key
            layer = layers.get(parameter, module)
            owners.setdefault(first.setdefault(parameter, name), []).append((name, layer))
    return owners


def ordinary(model: nn.Module) -> nn.Module:
    """The user's own module; one that `snip.accelerate` made is refused."""
    model = unwrap(model)
    if isinstance(model, Accelerated):
        raise InputError(
            "this is an accelerated network: snip.densify(model) gives the ordinary model with its "
            "weights, which this function takes."
        )
    return model


def is_weight(shape: Sequence[int]) -> bool:
    """Whether a prunable parameter of this shape connects units; with one dimension it is a bias.

    Its mask and its scores have the same shape.
    """
    return len(shape) > 1


def is_conv1d(module: nn.Module) -> bool:
    """Whether it is Hugging Face's Conv1D, a linear layer whose weight is [in, out].

    Whoever has one has imported transformers, so it is not imported here.
    """
    transformers = sys.modules.get("transformers.pytorch_utils")
    return type(module) is getattr(transformers, "Conv1D", None)


def require_prunable(
    model: nn.Module, predicate: Predicate | None = None
) -> dict[str, nn.Parameter]:
    """`prunable_parameters`, or an error that says why there are none."""
    params = prunable_parameters(model, predicate)
    if params:
        return params
    reasons = sorted(set(left_out(model, predicate).values()))
    raise InputError(
        f"{type(unwrap(model)).__name__} has no prunable parameters "
        f"({'; '.join(reasons) or 'it has no parameters at all'}). "
        "Choose some with params=lambda name, module, param: ..."
    )


def _check_predicate(predicate: Predicate) -> None:
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


def _chosen(predicate: Predicate, name: str, module: nn.Module, parameter: nn.Parameter) -> bool:
    answer: object = predicate(name, module, parameter)
    if isinstance(answer, torch.Tensor) and answer.numel() != 1:
        raise KindError(
            f"params returned a tensor of shape {tuple(answer.shape)} for {name!r}: return whether "
            "the parameter is pruned, True or False."
        )
    return bool(answer)


def _why_out(
    owners: list[tuple[str, nn.Module]], parameter: nn.Parameter, predicate: Predicate | None
) -> str | None:
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
