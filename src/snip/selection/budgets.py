"""Budgets: which parameters are ranked together, and how many connections each group keeps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real

import torch

from snip.common.errors import InputError, KindError, nearest
from snip.network.norms import layer_name

SCOPES = ("global", "layer", "uniform", "erk")
OWN = "own"  # in a provenance: the method ranks by a rule of its own and takes no scope or floor
Scope = str | Mapping[str, float]
Shares = list[tuple[list[str], int]]  # (parameters ranked together, how many they keep)


def checked_sparsity(sparsity: float) -> float:
    """`sparsity` if it is a fraction in [0, 1); otherwise the reason why not."""
    if isinstance(sparsity, bool) or not isinstance(sparsity, Real):
        raise KindError(f"sparsity is {sparsity!r}: give a number such as 0.95.")
    sparsity = float(sparsity)
    if 10 <= sparsity <= 100:  # 1.5 may be a slip of another kind
        raise InputError(
            f"sparsity is {sparsity:g}: it is the fraction removed, not a percentage; "
            f"write {sparsity / 100:g}."
        )
    if not 0 <= sparsity < 1:  # also refuses NaN
        raise InputError(f"sparsity is {sparsity:g}: it must lie in [0, 1), e.g. 0.95.")
    return sparsity


def check_scope(scope: Scope) -> None:
    """Refuse an unknown scope before any work is done."""
    if isinstance(scope, Mapping):
        for name, sparsity in scope.items():
            try:
                checked_sparsity(sparsity)
            except InputError as error:
                raise InputError(f"scope[{name!r}]: {error}") from error
    elif scope not in SCOPES:
        raise nearest("scope", scope, SCOPES)


def check_scope_names(scope: Scope, parameters: Mapping[str, object]) -> None:
    """Refuse a scope that names a parameter or layer that there is not."""
    known = {*parameters, *layers(parameters)}
    for key in scope if isinstance(scope, Mapping) else ():
        if key not in known:
            raise nearest("parameter or layer in scope", key, known)


def kept_count(total: int, sparsity: float) -> int:
    """kappa = round(m (1 - sparsity)) of Algorithm 1."""
    return round(total * (1 - sparsity))


def left_in(name: str, tensor: torch.Tensor, within: Mapping[str, torch.Tensor] | None) -> int:
    """Number of connections of a parameter that may still be kept inside the masks `within`."""
    return int(within[name].count_nonzero()) if within and name in within else tensor.numel()


def shares(scores: Mapping[str, torch.Tensor], sparsity: float, scope: Scope) -> Shares:
    """The groups of parameters that are ranked together, and how many connections each keeps."""
    sizes = {name: score.numel() for name, score in scores.items()}
    kept = kept_count(sum(sizes.values()), sparsity)
    if isinstance(scope, Mapping):
        return _named(sizes, scope, sparsity)
    if scope == "global":
        return [(list(sizes), kept)]
    if scope == "layer":
        groups = layers(sizes)
        totals = {layer: sum(sizes[n] for n in names) for layer, names in groups.items()}
        shares = apportion({k: v * (1 - sparsity) for k, v in totals.items()}, kept, totals)
        return [(names, shares[layer]) for layer, names in groups.items()]
    if scope == "uniform":
        shares = apportion({k: v * (1 - sparsity) for k, v in sizes.items()}, kept, sizes)
        return [([name], share) for name, share in shares.items()]
    return _erk({name: tuple(score.shape) for name, score in scores.items()}, sparsity, kept)


def _erk(shapes: Mapping[str, tuple[int, ...]], sparsity: float, kept: int) -> Shares:
    """A share per weight by `erk_densities`, of the weight and the biases of its layer together.

    The rule is made for the two sides of a weight. A bias has one, which gives it the density eps:
    all 410 of LeNet-300-100 would stay at 99%, of 2,666 connections. So a bias is ranked with the
    first weight of its layer, at that weight's density. Without biases the densities are those
    that were published.
    """
    groups: dict[str, list[str]] = {}
    for names in layers(shapes).values():
        weights = [name for name in names if len(shapes[name]) > 1] or names
        groups |= {name: [name] for name in weights}
        groups[weights[0]] += [name for name in names if name not in weights]
    sizes = {first: sum(math.prod(shapes[n]) for n in names) for first, names in groups.items()}
    densities = erk_densities({name: shapes[name] for name in groups}, sparsity, sizes)
    shares = apportion({k: v * densities[k] for k, v in sizes.items()}, kept, sizes)
    return [(names, shares[first]) for first, names in groups.items()]


def layers(names: Mapping[str, object]) -> dict[str, list[str]]:
    """Parameters grouped by the layer that they belong to."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(layer_name(name), []).append(name)
    return groups


def erk_densities(
    shapes: Mapping[str, tuple[int, ...]],
    sparsity: float,
    sizes: Mapping[str, int] | None = None,
) -> dict[str, float]:
    """Erdos-Renyi-kernel densities: eps * sum(dims) / prod(dims), capped at 1, total exact.

    `sizes` is how many connections have each density: of a weight alone, unless given.
    """
    sizes = sizes or {name: math.prod(shape) for name, shape in shapes.items()}
    dense: set[str] = set()
    target = sum(sizes.values()) * (1 - sparsity)
    while True:
        rest = {n: shape for n, shape in shapes.items() if n not in dense and 0 not in shape}
        each = {name: sum(shape) / math.prod(shape) for name, shape in rest.items()}
        left = target - sum(sizes[name] for name in dense)
        scale = left / max(1, sum(sizes[name] * density for name, density in each.items()))
        densities = {name: scale * density for name, density in each.items()}
        # Capping a layer leaves budget over, which the others must take up: solve again.
        full = {name for name, density in densities.items() if density > 1}
        if not full:
            return {name: densities.get(name, 1.0) for name in shapes}
        dense |= full


def apportion(wanted: Mapping[str, float], total: int, caps: Mapping[str, int]) -> dict[str, int]:
    """Whole numbers near `wanted`, at most `caps`, that add up to `total` (largest remainder)."""
    shares = {name: min(math.floor(value), caps[name]) for name, value in wanted.items()}
    order = sorted(wanted, key=lambda name: shares[name] - wanted[name])  # stable: ties in order
    missing = total - sum(shares.values())
    while missing > 0:
        for name in order:
            if missing > 0 and shares[name] < caps[name]:
                shares[name] += 1
                missing -= 1
    while missing < 0:  # when rounded floats gave a share that is one too high
        for name in reversed(order):
            if missing < 0 and shares[name] > 0:
                shares[name] -= 1
                missing += 1
    return shares


def _named(sizes: Mapping[str, int], wanted: Mapping[str, float], sparsity: float) -> Shares:
    """Budgets from a sparsity per parameter or layer name; the others get the common sparsity."""
    check_scope_names(wanted, sizes)
    named: Shares = []
    for layer, names in layers(sizes).items():
        whole = [name for name in names if name not in wanted]
        for name in names:
            if name in wanted:
                named.append(([name], kept_count(sizes[name], checked_sparsity(wanted[name]))))
        if whole:
            share = checked_sparsity(wanted.get(layer, sparsity))
            named.append((whole, kept_count(sum(sizes[n] for n in whole), share)))
    return named
