"""Weight initialisers of the paper's study (RN, TN, VS-X, VS-H) and the authors' own (VS)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from snip.common.errors import InputError, KindError, nearest
from snip.distributed.wrappers import is_sharded
from snip.masks.holding import rezero
from snip.network.layout import is_conv1d
from snip.network.network import prunable_parameters
from snip.network.norms import attribute_names, normed_weights
from snip.network.parameters import NORMS, ordinary, parameter_places

Rule = Callable[..., None]  # rule(weight, fan_in, fan_out, *, generator, [std])

# Standard deviation of a standard normal cut at +-2: dividing by it undoes what the cut took away.
TRUNCATED_STD = 0.87962566103423978

_LAYER = r"(_l\d+(_reverse)?)?"
_WEIGHT = re.compile(rf"weight|weight_(ih|hh|hr){_LAYER}|(in|q|k|v)_proj_weight")
_BIAS = re.compile(rf"bias|bias_(ih|hh){_LAYER}|in_proj_bias")


def random_normal(
    weight: Tensor,
    fan_in: int,
    fan_out: int,
    *,
    std: float = 1.0,
    generator: torch.Generator | None = None,
) -> None:
    """RN: a normal of the same width in every layer, whatever its fans."""
    # The authors' code knows only `vs` and the paper gives no width. 1.0 is TensorFlow 1's default
    # and fits Table 3, where RN and TN wreck the GRU: one draw of GRU-s at 90% kept 1% of its
    # recurrent matrix at 1.0; at 0.05 (TensorFlow 2's default) 5%, hardly less than VS-X's 6%.
    weight.normal_(0.0, std, generator=generator)


def truncated_normal(
    weight: Tensor,
    fan_in: int,
    fan_out: int,
    *,
    std: float = 1.0,
    generator: torch.Generator | None = None,
) -> None:
    """TN: like RN, but values outside two standard deviations are drawn again."""
    nn.init.trunc_normal_(weight, 0.0, std, -2 * std, 2 * std, generator=generator)


def variance_scaling(
    weight: Tensor,
    fan_in: int,
    fan_out: int,
    *,
    scale: float = 1.0,
    average: bool = False,
    generator: torch.Generator | None = None,
) -> None:
    """VS: a normal cut at two sigma, whose std after the cut is sqrt(scale / fan)."""
    fan = (fan_in + fan_out) / 2 if average else fan_in
    sigma = math.sqrt(scale / fan) / TRUNCATED_STD
    nn.init.trunc_normal_(weight, 0.0, sigma, -2 * sigma, 2 * sigma, generator=generator)


INITIALIZERS: dict[str, Rule] = {
    "rn": random_normal,
    "tn": truncated_normal,
    "vs-x": partial(variance_scaling, scale=1.0, average=True),  # Glorot and Bengio 2010
    "vs-h": partial(variance_scaling, scale=2.0),  # He et al. 2015
    "vs": variance_scaling,  # the authors' code: TensorFlow's variance_scaling with its defaults
}


def initialize(
    model: nn.Module,
    name: str = "vs",
    *,
    seed: int | None = None,
    std: float | None = None,
    biases: str = "zero",
) -> None:
    """Draw the model's connections anew by the named rule; norms to 1 and 0, statistics reset.

    What is drawn is what counts in m (`prunable_parameters`): tied parameters once; frozen ones,
    embeddings and parameters of layers this library does not know keep their values. `std` is for
    "rn" and "tn". `biases` is "zero" or the name of a rule: the first release of the authors' code
    drew the scored biases by "vs", a later one set them to zero. Masks held by the model stay.
    """
    weight_rule = _rule(name, std)
    bias_rule = None if biases == "zero" else _rule(biases, None)
    todo = _known_parameters(model)
    stored = {parameter for _, _, parameter in todo}
    drawn = [n for n in normed_weights(ordinary(model)).values() if n.stored in stored]
    generator = _generator(seed)
    with torch.no_grad():
        for module, key, parameter in todo:
            rule = weight_rule if _WEIGHT.fullmatch(key) else bias_rule
            fill(parameter, rule, fans(module, key, parameter), generator)
        for normed in drawn:
            normed.measure()
        for module in model.modules():
            if isinstance(module, NORMS):
                _reset_norm(module)
    rezero(model)
    for normed in drawn:
        normed.renew()


def fans(module: nn.Module, key: str, parameter: Tensor) -> tuple[int, int]:
    """How many inputs a unit sums, and how many units an input feeds, through this parameter.

    Gates of a recurrent layer and q, k, v of an attention layer count each for itself. Strides are
    not taken into account, as everywhere. A bias has its length for both, as in TensorFlow.
    """
    shape = parameter.shape
    if _BIAS.fullmatch(key):
        length = shape[0] // _stacked(module, key)
        return length, length
    if isinstance(module, _ConvNd):  # also transposed, whose weight is [in, out / groups, ...]
        window = math.prod(module.kernel_size)
        groups = module.groups
        return module.in_channels // groups * window, module.out_channels // groups * window
    if isinstance(module, nn.Bilinear):
        return shape[1] * shape[2], shape[0]
    if is_conv1d(module):  # [in, out]
        return shape[0], shape[1]
    return shape[1], shape[0] // _stacked(module, key)


def _stacked(module: nn.Module, key: str) -> int:
    """How many matrices of equal size a parameter stacks along its first dimension."""
    if key.startswith("in_proj"):
        return 3
    if key.startswith("weight_hr"):  # the projection of an LSTM's output has no gates
        return 1
    if isinstance(module, (nn.LSTM, nn.LSTMCell)):
        return 4
    return 3 if isinstance(module, (nn.GRU, nn.GRUCell)) else 1


def _rule(name: str, std: float | None) -> Rule:
    if name not in INITIALIZERS:
        raise nearest("initializer", name, INITIALIZERS)
    if std is None:
        return INITIALIZERS[name]
    if name not in ("rn", "tn"):
        raise InputError(f"std={std} was given with {name!r}, whose fans set it: leave std out.")
    if not (math.isfinite(std) and std > 0):
        raise InputError(f"std={std} must be a positive number.")
    return partial(INITIALIZERS[name], std=std)


def _generator(seed: int | None) -> torch.Generator | None:
    """A generator of its own for a seed, so that the global one is not touched."""
    if seed is None:
        return None
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise KindError(f"seed={seed!r} must be an int, or None for torch's global generator.")
    return torch.Generator().manual_seed(seed)


def _known_parameters(model: nn.Module) -> list[tuple[nn.Module, str, nn.Parameter]]:
    """(layer, key in the layer, parameter) of all that can be drawn, in the model's order."""
    owners, keys = parameter_places(ordinary(model)), attribute_names(ordinary(model))
    found = []
    for name, parameter in prunable_parameters(model).items():
        key = keys[name]
        if is_sharded(parameter):
            raise InputError(f"{name!r} is split over processes: initialise before sharding.")
        if _WEIGHT.fullmatch(key) or _BIAS.fullmatch(key):
            found.append((owners[name][0][1], key, parameter))
    if not found:
        raise InputError(
            f"{type(ordinary(model)).__name__} has no trainable linear, convolution, recurrent or "
            "attention layer to initialise: draw its parameters yourself."
        )
    return found


def fill(
    parameter: nn.Parameter,
    rule: Rule | None,
    fan: tuple[int, int],
    generator: torch.Generator | None,
) -> None:
    """Draw a parameter in place by a rule; zeros without one."""
    if rule is None or parameter.numel() == 0:
        parameter.zero_()
        return
    # Drawn on the CPU in float32, so that a seed means the same network on every device and dtype.
    drawn = torch.empty(parameter.shape, dtype=torch.float32, device="cpu")
    rule(drawn, *fan, generator=generator)
    parameter.copy_(drawn)


def _reset_norm(module: nn.Module) -> None:
    """Scale 1, shift 0, fresh statistics; a frozen norm belongs to a frozen part and stays."""
    own = list(module.parameters(recurse=False))
    if own and not any(p.requires_grad for p in own):
        return
    for key, parameter in module.named_parameters(recurse=False):
        if parameter.requires_grad and key in ("weight", "bias"):
            parameter.fill_(1.0 if key == "weight" else 0.0)
    if isinstance(module, _NormBase):
        module.reset_running_stats()
