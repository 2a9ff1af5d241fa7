"""Granularities: what pruning keeps or removes as a whole.

Single connections (`Element`), units of a layer (`Channel`), n of every m inputs (`NofM`) or blocks
of a weight (`Block`). Each turns scores and a budget into masks in its own `keep`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from snip.common.checks import checked_whole
from snip.common.errors import InputError, KindError, nearest, warn
from snip.common.text import listed
from snip.network.cuts import CoupledUnits, coupled_units
from snip.network.layout import is_weight
from snip.network.network import Network
from snip.selection.topk import Cost, keep_top

Tensor = torch.Tensor
Tensors = Mapping[str, Tensor]  # by parameter name
Costs = Mapping[str, Cost]  # of one connection of each parameter


class Granularity(ABC):
    """The unit that pruning keeps or removes as a whole."""

    accepts_scope: ClassVar[bool] = True  # scope and floor may set how much each layer keeps
    needs_inputs: ClassVar[bool] = False  # `on` traces the model and needs inputs to call it with

    @abstractmethod
    def __str__(self) -> str: ...

    def keep(
        self,
        scores: Tensors,
        budget: Cost,
        within: Tensors | None = None,
        costs: Costs | None = None,
        *,
        round_up: bool = False,
    ) -> dict[str, Tensor]:
        """Return bool masks of the highest scores that the budget pays for.

        The budget is a number of connections or, with `costs`, their total cost. `within` is True
        where a connection may be kept. Ties go to the first position. Groups that do not add up to
        the budget stay below it; with `round_up` the last one exceeds it.
        """
        costs = costs or dict.fromkeys(scores, 1)
        return self._keep(scores, budget, within or {}, costs, round_up)

    @abstractmethod
    def _keep(
        self, scores: Tensors, budget: Cost, within: Tensors, costs: Costs, round_up: bool
    ) -> dict[str, Tensor]:
        """Implement `keep`; `within` may be empty, `costs` has every parameter."""

    @property
    def sparsity(self) -> float | None:
        """Sparsity that the granularity itself fixes; None if the caller chooses it."""
        return None

    @property
    def group_size(self) -> int:
        """Number of connections that are ranked together, by their mean score."""
        return 1

    @property
    def for_early_rounds(self) -> Granularity:
        """Granularity for all rounds but the last, whose sparsities are lower."""
        return self

    def on(self, model: nn.Module, inputs: Any) -> Granularity:
        """Return this granularity bound to `model`; `inputs` is an example of its inputs."""
        return self

    def check_kept(self, kept: int, sparsity: float) -> None:  # noqa: B027
        """Raise if nothing is kept because the best group alone exceeds the budget."""

    def fits_rows(self, rows: int) -> bool:
        """Return True if a weight can be cut after every `rows` rows without cutting a group."""
        return True


@dataclass(frozen=True)
class Element(Granularity):
    """Single connections."""

    def __str__(self) -> str:
        return "element"

    def _keep(
        self, scores: Tensors, budget: Cost, within: Tensors, costs: Costs, round_up: bool
    ) -> dict[str, Tensor]:
        if any(cost != 1 for cost in costs.values()):
            scores = {name: _per_cost(score, costs[name]) for name, score in scores.items()}
        return keep_top(scores, budget, within, costs)


@dataclass(frozen=True)
class Channel(Granularity):
    """Whole units: channels of a convolution, neurons of a linear layer.

    A unit includes its weights, its bias and the weights of the next layers that read it, so that
    `snip.shrink` can cut it out of the network. Units that are added to each other are kept or
    removed together. Units that an output reads are always kept, and so are those read by an
    operation that `snip.shrink` cannot cut. Every layer keeps the same share of its units.
    """

    accepts_scope: ClassVar[bool] = False
    needs_inputs: ClassVar[bool] = True
    units: CoupledUnits | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return "channel"

    def on(self, model: nn.Module, inputs: Any) -> Channel:
        """Return this granularity with the units of `model`, found by tracing it on `inputs`."""
        return Channel(coupled_units(model, inputs))

    def _keep(
        self, scores: Tensors, budget: Cost, within: Tensors, costs: Costs, round_up: bool
    ) -> dict[str, Tensor]:
        """Return masks of the best units of each layer, the same share of every layer.

        A unit's score is the sum over the connections that make it and those that read it. One
        ranking of all units, by sum or by mean, would leave a single unit in wide layers (in six
        layers of VGG-16 at a sparsity of 0.9), so units are ranked within their layer. The best
        unit of each layer is always kept: without one, no signal would pass.
        """
        units = self._units_of(scores)
        allowed = _allowed(scores, within)
        alive = units.sums(allowed) > 0
        sums = units.sums({n: s.where(allowed[n].to(s.device), 0) for n, s in scores.items()})
        ranks = _relative_ranks(sums, units.spaces(), alive)
        always = units.fixed | _best_of_each_layer(units, ranks, alive)

        def masks_of(kept: Tensor) -> dict[str, Tensor]:
            return {n: units.mask(n, mask.shape, kept) & mask for n, mask in allowed.items()}

        def cost_of(chosen: Tensors) -> Cost:
            masks = masks_of(always | chosen["units"])
            return sum(costs[name] * int(mask.count_nonzero()) for name, mask in masks.items())

        least = cost_of({"units": always})
        if least > budget:
            total = sum(costs[name] * score.numel() for name, score in scores.items())
            raise InputError(
                f"granularity 'channel' cannot remove so much: with one unit in each layer, and "
                f"all units that cannot be taken out, {float(least / total):.3%} stays. Ask for a "
                f"sparsity of at most {float(1 - least / total):.6g}."
            )
        chosen = _keep_best({"units": ranks}, cost_of, budget, {"units": alive & ~always}, round_up)
        return masks_of(always | chosen["units"])

    def _units_of(self, scores: Tensors) -> CoupledUnits:
        """Return the units; warn of weights that belong to no removable unit."""
        units = self.units
        if units is None:
            raise InputError(
                "granularity 'channel' must know which layer reads which units: give "
                "snip.Channel().on(model, batch), or call snip.prune, which does so."
            )
        weights = [name for name, score in scores.items() if is_weight(score.shape)]
        whole = [name for name in weights if not units.decide(name)]
        if whole:
            warn(
                f"granularity 'channel' leaves {listed(whole)} whole: their units cannot be "
                "followed, or they are read by what cannot be cut."
            )
        return units


@dataclass(frozen=True)
class NofM(Granularity):
    """n of every m consecutive inputs of a unit; of a convolution, at each position of its kernel.

    GPUs multiply faster by 2:4 weights (`torch.sparse.to_sparse_semi_structured`), those of
    convolutions as channels-last matrices [outputs, positions x inputs]. Biases are not pruned, nor
    are weights whose number of inputs is not a multiple of m.
    """

    accepts_scope: ClassVar[bool] = False
    n: int
    m: int
    inputs_first: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    def __post_init__(self) -> None:
        checked_whole("n of a granularity n:m", self.n, least=1)
        checked_whole("m of a granularity n:m", self.m, least=2)
        if self.n >= self.m:
            raise InputError(f"granularity '{self}' removes nothing: n must be less than m.")

    def __str__(self) -> str:
        return f"{self.n}:{self.m}"

    @property
    def sparsity(self) -> float:
        """Fraction removed of a weight that follows the pattern."""
        return 1 - self.n / self.m

    @property
    def for_early_rounds(self) -> Granularity:
        """Single connections: the pattern cannot have the lower sparsity of an early round."""
        return Element()

    def on(self, model: nn.Module, inputs: Any) -> NofM:
        """Return this granularity with the weights of `model` that are stored inputs first."""
        return replace(self, inputs_first=_inputs_first(model))

    def _keep(
        self, scores: Tensors, budget: Cost, within: Tensors, costs: Costs, round_up: bool
    ) -> dict[str, Tensor]:
        """Keep the n best of every m inputs, whatever the budget.

        Weights that do not divide into groups are left as they are and not refused: the first layer
        of nearly every network is one, because images have three channels.
        """
        weights = [name for name, score in scores.items() if is_weight(score.shape)]
        unchanged = [name for name in weights if not self.applies_to(name, scores[name])]
        if len(unchanged) == len(weights):
            raise InputError(
                f"no weight has a number of inputs that divides by {self.m}: granularity "
                f"'{self}' would remove nothing."
            )
        if unchanged:
            warn(
                f"granularity '{self}' leaves {listed(unchanged)} as before: the number of inputs "
                f"does not divide by {self.m}."
            )
        masks = {name: mask.clone() for name, mask in _allowed(scores, within).items()}
        for name, mask in masks.items():
            if self.applies_to(name, scores[name]):
                mask &= self._winners(name, scores[name], mask)
        return masks

    def applies_to(self, name: str, weight: Tensor) -> bool:
        """Return True if a weight, given by itself or by its mask, divides into groups of m."""
        if not is_weight(weight.shape) or not weight.numel():
            return False
        return self._inputs_last(name, weight).shape[-1] % self.m == 0

    def _winners(self, name: str, score: Tensor, allowed: Tensor) -> Tensor:
        """Mask of the n best of every m inputs; where fewer are allowed, others win as well."""
        lowest = torch.finfo(score.dtype).min  # scores are finite: what is not allowed comes last
        inputs = self._inputs_last(name, score.where(allowed.to(score.device), lowest))
        groups = inputs.reshape(-1, self.m)
        # A stable sort leaves the first of ties first.
        best = groups.sort(dim=1, descending=True, stable=True).indices[:, : self.n]
        wins = torch.zeros_like(groups, dtype=torch.bool).scatter_(1, best, True)
        mask = torch.empty_like(allowed)
        self._inputs_last(name, mask).copy_(wins.reshape(inputs.shape))
        return mask

    def _inputs_last(self, name: str, weight: Tensor) -> Tensor:
        """View of a weight, its scores or its mask as [..., inputs]."""
        return weight.movedim(0 if name in self.inputs_first else 1, -1)


@dataclass(frozen=True)
class Block(Granularity):
    """Blocks of a weight as a matrix [outputs, inputs x positions]; a bias is one column.

    Where the matrix is not a multiple of the block, the blocks at its border are smaller.
    """

    rows: int
    columns: int
    inputs_first: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    def __post_init__(self) -> None:
        checked_whole("the rows of a block", self.rows, least=1)
        checked_whole("the columns of a block", self.columns, least=1)

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}"

    @property
    def group_size(self) -> int:
        """Number of connections in a whole block."""
        return self.rows * self.columns

    def on(self, model: nn.Module, inputs: Any) -> Block:
        """Return this granularity with the weights of `model` that are stored inputs first."""
        return replace(self, inputs_first=_inputs_first(model))

    def _keep(
        self, scores: Tensors, budget: Cost, within: Tensors, costs: Costs, round_up: bool
    ) -> dict[str, Tensor]:
        """Return masks of the blocks with the highest mean score, per cost if there are costs.

        By their mean, the smaller blocks at a border compete with whole ones. Of a block that is
        partly pruned already, only the connections that are left count.
        """
        allowed = _allowed(scores, within)
        sizes = {name: self.sums(name, mask) for name, mask in allowed.items()}
        means = {}
        for name, score in scores.items():
            sums = self.sums(name, score.where(allowed[name].to(score.device), 0)).cpu()
            means[name] = _per_cost(sums / sizes[name].clamp(min=1), costs[name])

        def cost_of(blocks: Tensors) -> Cost:
            return sum(costs[name] * int(sizes[name][kept].sum()) for name, kept in blocks.items())

        candidates = {name: size > 0 for name, size in sizes.items()}
        blocks = _keep_best(means, cost_of, budget, candidates, round_up)
        return {n: self._mask(n, blocks[n], mask.shape) & mask for n, mask in allowed.items()}

    def check_kept(self, kept: int, sparsity: float) -> None:
        """Raise if nothing is kept because the best block alone exceeds the budget."""
        if not kept:
            raise InputError(
                f"sparsity {sparsity:g} keeps less than the best block of {self} connections: "
                "ask for a lower sparsity or smaller blocks."
            )

    def fits_rows(self, rows: int) -> bool:
        """Return True if `rows` rows of a weight are whole blocks."""
        return rows % self.rows == 0

    def sums(self, name: str, tensor: Tensor) -> Tensor:
        """Sum scores over each block, in double precision, or count what a mask keeps of it."""
        matrix = self._matrix(name, tensor)
        rows, columns = self._size_in(matrix)
        height, width = matrix.shape
        padded = F.pad(matrix, (0, -width % columns, 0, -height % rows))
        blocks = padded.view(len(padded) // rows, rows, padded.shape[1] // columns, columns)
        dtype = torch.float64 if tensor.is_floating_point() else torch.int64
        return blocks.sum((1, 3), dtype=dtype)

    def _mask(self, name: str, blocks: Tensor, shape: torch.Size) -> Tensor:
        """Mask of a parameter of this shape that keeps the blocks that are True."""
        matrix = self._matrix(name, torch.empty(shape, device="meta"))
        rows, columns = self._size_in(matrix)
        mask = blocks.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
        mask = mask[: matrix.shape[0], : matrix.shape[1]]
        if name in self.inputs_first:
            shape = torch.Size((shape[1], shape[0], *shape[2:]))
            return mask.reshape(shape).transpose(0, 1).contiguous()
        return mask.reshape(shape)

    def _size_in(self, matrix: Tensor) -> tuple[int, int]:
        """Rows and columns of a block in a matrix, which may be smaller than a block."""
        height, width = matrix.shape
        return min(self.rows, max(1, height)), min(self.columns, max(1, width))

    def _matrix(self, name: str, tensor: Tensor) -> Tensor:
        """Reshape a parameter to [outputs, inputs x positions], a bias to one column."""
        tensor = tensor.transpose(0, 1) if name in self.inputs_first else tensor
        shape = tensor.shape if tensor.ndim else (1,)
        return tensor.reshape(shape[0], prod(shape[1:]))


GRANULARITIES = ("element", "channel", "2:4", "4x4")
_BY_NAME: dict[str, Callable[[], Granularity]] = {"element": Element, "channel": Channel}
_BY_SEPARATOR: dict[str, Callable[[int, int], Granularity]] = {":": NofM, "x": Block}


def checked_granularity(given: str | Granularity) -> Granularity:
    """Return the value for a name such as "channel", "2:4" or "4x4"; a value is returned as is."""
    if isinstance(given, Granularity):
        return given
    if not isinstance(given, str):
        raise KindError(f"granularity is {given!r}: give a name such as 'channel' or '4x4'.")
    text = given.strip().lower()
    if text in _BY_NAME:
        return _BY_NAME[text]()
    match = re.fullmatch(r"(\d{1,6})([:x])(\d{1,6})", text)
    if match is None:
        raise nearest("granularity", given, GRANULARITIES)
    return _BY_SEPARATOR[match[2]](int(match[1]), int(match[3]))


def _keep_best(
    scores: Tensors,
    cost_of: Callable[[Tensors], Cost],
    budget: Cost,
    candidates: Tensors,
    round_up: bool,
) -> dict[str, Tensor]:
    """Return True for the groups with the highest scores that the budget pays for.

    `scores` and `candidates` have one entry per group; only candidates can be kept. `cost_of` is
    the total cost of some groups and must not fall when a group is added. No group is skipped for
    a cheaper one with a lower score. With `round_up`, one more is kept if some budget is left.
    """
    most = sum(int(mask.count_nonzero()) for mask in candidates.values())

    def cost_of_best(count: int) -> Cost:
        return cost_of(keep_top(scores, count, candidates))

    count = bisect_right(range(most + 1), budget, key=cost_of_best) - 1
    if round_up and count < most and cost_of_best(count) < budget:
        count += 1
    return keep_top(scores, count, candidates)


def _per_cost(score: Tensor, cost: Cost) -> Tensor:
    """Divide scores by the cost of a connection; multiply negative ones, which ask for removal."""
    return torch.where(score < 0, score * float(cost), score / float(cost))


def _allowed(scores: Tensors, within: Tensors) -> dict[str, Tensor]:
    """Masks on the CPU that are True where a connection may be kept."""
    everywhere = {name: torch.ones(score.shape, dtype=torch.bool) for name, score in scores.items()}
    return {name: within.get(name, mask).cpu() for name, mask in everywhere.items()}


def _relative_ranks(sums: Tensor, spaces: Tensor, alive: Tensor) -> Tensor:
    """Rank each unit among the live units of its space, from 1 for the best down towards 0.

    Units above a threshold are then the same share of every space.
    """
    ranks = torch.zeros_like(sums)
    for space in spaces.unique():
        members = torch.nonzero((spaces == space) & alive).flatten()
        order = sums[members].sort(descending=True, stable=True).indices
        ranks[members[order]] = 1 - torch.arange(len(order)).double() / max(1, len(order))
    return ranks


def _best_of_each_layer(units: CoupledUnits, ranks: Tensor, alive: Tensor) -> Tensor:
    """Return True for the best unit of each layer that has no fixed unit."""
    best = torch.zeros_like(units.fixed)
    for made in units.layers.values():
        if not (units.fixed | best)[made].any():
            top = keep_top({"units": ranks[made]}, 1, {"units": alive[made]})["units"]
            best[made[top]] = True
    return best


def _inputs_first(model: nn.Module) -> frozenset[str]:
    """Names of weights stored [inputs, outputs]: transposed convolutions, Hugging Face's Conv1D."""
    return frozenset(
        name for name, fact in Network.of(model).parameters.items() if fact.inputs_first
    )
