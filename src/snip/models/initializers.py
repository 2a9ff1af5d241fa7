"""Weight initialisers of the paper's study (RN, TN, VS-X, VS-H) and the authors' own (VS)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from snip.common.errors import InputError, KindError, nearest
from snip.distributed.shards import is_sharded
from snip.masks.holding import rezero
from snip.network.network import Network, ParameterFacts
from snip.network.parameters import NORMS, ordinary

Rule = Callable[..., None]  # rule(weight, fan_in, fan_out, *, generator, [std])

# Standard deviation of a standard normal truncated at +-2.
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
    """RN: a normal distribution of the same width in every layer, whatever its fans."""
    # The authors' code has only `vs` and the paper gives no width. 1.0 is TensorFlow 1's default
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
    """TN: like RN, but truncated at two standard deviations."""
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
    """VS: a normal truncated at two sigma, with std sqrt(scale / fan) after truncation."""
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

    Everything that counts in m (`prunable_parameters`) is drawn: tied parameters once; frozen ones,
    embeddings and parameters of layers that this library does not know keep their values. `std` is
    for "rn" and "tn". `biases` is "zero" or the name of a rule: the first release of the authors'
    code drew the scored biases by "vs", a later one set them to zero. Masks of the model stay.
    """
    weight_rule = _rule(name, std)
    bias_rule = None if biases == "zero" else _rule(biases, None)
    facts = _drawable(model)
    norms = [fact.norm for fact in facts if fact.norm is not None]
    # A generator of its own for a seed leaves the global one as it is.
    generator = None if seed is None else torch.Generator().manual_seed(_checked_seed(seed))
    with torch.no_grad():
        for fact in facts:
            rule = weight_rule if _WEIGHT.fullmatch(fact.key) else bias_rule
            fill(fact.tensor, rule, fact.layout.fans(fact.tensor.shape), generator)
        for norm in norms:
            norm.measure()
        for module in model.modules():
            if isinstance(module, NORMS):
                _reset_norm(module)
    rezero(model)
    for norm in norms:
        norm.renew()


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


def _checked_seed(seed: int) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise KindError(f"seed={seed!r} must be an int, or None for torch's global generator.")
    return seed


def _drawable(model: nn.Module) -> list[ParameterFacts]:
    """The parameters that a rule can draw, in the model's order."""
    module = ordinary(model)
    network = Network.of(model)
    drawable = []
    for name in network.competing:
        fact = network.parameters[name]
        if is_sharded(fact.tensor):
            raise InputError(f"{name!r} is split over processes: initialise before sharding.")
        if _WEIGHT.fullmatch(fact.key) or _BIAS.fullmatch(fact.key):
            drawable.append(fact)
    if not drawable:
        raise InputError(
            f"{type(module).__name__} has no trainable linear, convolution, recurrent or "
            "attention layer to initialise: draw its parameters yourself."
        )
    return drawable


def fill(
    parameter: nn.Parameter,
    rule: Rule | None,
    fans: tuple[int, int],
    generator: torch.Generator | None,
) -> None:
    """Draw a parameter in place by a rule; fill it with zeros if there is none."""
    if rule is None or parameter.numel() == 0:
        parameter.zero_()
        return
    # Drawn on the CPU in float32, so that a seed means the same network on every device and dtype.
    drawn = torch.empty(parameter.shape, dtype=torch.float32, device="cpu")
    rule(drawn, *fans, generator=generator)
    parameter.copy_(drawn)


def _reset_norm(module: nn.Module) -> None:
    """Set scale 1, shift 0 and fresh statistics; a frozen norm stays, with its frozen model."""
    own = list(module.parameters(recurse=False))
    if own and not any(p.requires_grad for p in own):
        return
    for key, parameter in module.named_parameters(recurse=False):
        if parameter.requires_grad and key in ("weight", "bias"):
            parameter.fill_(1.0 if key == "weight" else 0.0)
    if isinstance(module, _NormBase):
        module.reset_running_stats()
