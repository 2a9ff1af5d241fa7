"""Whole blocks of weights. At the border of a matrix that does not divide, blocks are smaller."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch
import torch.nn.functional as F

from snip.selection.granularity import Block
from snip.selection.groups import Tensors, best_groups, per_cost
from snip.selection.topk import Cost

Tensor = torch.Tensor


def keep_blocks(
    block: Block,
    scores: Tensors,
    budget: Cost,
    within: Tensors | None,
    costs: Mapping[str, Cost] | None,
    *,
    reach: bool = False,
) -> dict[str, Tensor]:
    """The blocks with the most score per connection (per cost), as many as the budget pays for.

    Per connection, so that a block at the border, which has fewer, competes like any other. Of a
    block in which some connections are gone already, the others count.
    """
    prices = {name: costs[name] if costs else 1 for name in scores}
    left = {
        name: (within or {}).get(name, torch.ones(score.shape, dtype=torch.bool)).cpu()
        for name, score in scores.items()
    }
    sizes = {name: block_sums(block, name, mask) for name, mask in left.items()}
    ranked = {}
    for name, score in scores.items():
        sums = block_sums(block, name, score.where(left[name].to(score.device), 0)).cpu()
        ranked[name] = per_cost(sums / sizes[name].clamp(min=1), prices[name])

    def spent(blocks: Tensors) -> Cost:
        return sum(prices[name] * int(sizes[name][kept].sum()) for name, kept in blocks.items())

    competing = {name: size > 0 for name, size in sizes.items()}
    kept = best_groups(ranked, spent, budget, competing, reach=reach)
    return {n: spread_out(block, n, kept[n], left[n].shape) & left[n] for n in scores}


def block_sums(block: Block, name: str, tensor: Tensor) -> Tensor:
    """The sum of each block of a parameter's scores, in double precision, or of its mask."""
    matrix = _matrix(block, name, tensor)
    rows, columns = _tile(block, matrix)
    height, width = matrix.shape
    padded = F.pad(matrix, (0, -width % columns, 0, -height % rows))
    tiles = padded.view(len(padded) // rows, rows, padded.shape[1] // columns, columns)
    return tiles.sum((1, 3), dtype=torch.float64 if tensor.is_floating_point() else torch.int64)


def spread_out(block: Block, name: str, blocks: Tensor, shape: torch.Size) -> Tensor:
    """The mask of a parameter of this shape that keeps these blocks."""
    matrix = _matrix(block, name, torch.empty(shape, device="meta"))
    rows, columns = _tile(block, matrix)
    kept = blocks.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    kept = kept[: matrix.shape[0], : matrix.shape[1]]
    if name in block.turned:
        shape = torch.Size((shape[1], shape[0], *shape[2:]))
        return kept.reshape(shape).transpose(0, 1).contiguous()
    return kept.reshape(shape)


def _tile(block: Block, matrix: Tensor) -> tuple[int, int]:
    """The size of a block, which is not larger than the matrix."""
    height, width = matrix.shape
    return min(block.rows, max(1, height)), min(block.columns, max(1, width))


def _matrix(block: Block, name: str, tensor: Tensor) -> Tensor:
    """A parameter as [outputs, inputs x positions]; a bias as one column."""
    tensor = tensor.transpose(0, 1) if name in block.turned else tensor
    shape = tensor.shape if tensor.ndim else (1,)
    return tensor.reshape(shape[0], prod(shape[1:]))
