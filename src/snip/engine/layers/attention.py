"""Sparse multi-head attention: projections by surviving weights, the rest as torch does it."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F

from snip.engine.kernels.index import LinearIndex
from snip.engine.kernels.memory import readable
from snip.engine.layers.packing import DENSE, SPARSE, PackedModule
from snip.engine.layers.products import plain_product

Tensor = torch.Tensor


class SparseAttention(PackedModule):
    """`nn.MultiheadAttention` with only its surviving weights as parameters.

    Its output projection is a layer of its own, as it is in torch, and is called as one.
    """

    WEIGHTS = frozenset({"in_proj_weight"})  # of queries, keys and values, one below the other
    OPTIONAL = frozenset({"in_proj_bias", "q_proj_weight", "k_proj_weight", "v_proj_weight"})

    # Settings of nn.MultiheadAttention, as it has them.
    in_proj_weight: Tensor
    out_proj: Any
    embed_dim: int
    num_heads: int
    head_dim: int
    dropout: float
    batch_first: bool

    @classmethod
    def covers(cls, layer: Any) -> bool:
        """Queries, keys and values of one width, and nothing added to the sequences."""
        whole = layer.in_proj_weight is not None
        return super().covers(layer) and whole and not layer.add_zero_attn

    def ways(self) -> tuple[str, ...]:
        """By the surviving weights, or in torch."""
        return SPARSE, DENSE

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As torch's layer does it: the outputs, and the attention weights if they are wanted."""
        masks = key_padding_mask, attn_mask
        if not self._takes(query, key, value, masks) or (is_causal and attn_mask is None):
            return self._in_torch(
                *(query, key, value, key_padding_mask, need_weights, attn_mask),
                *(average_attn_weights, is_causal),
            )
        q, k, v = map(self._heads, self._projected(query, key, value))
        causal = is_causal and not need_weights and key_padding_mask is None
        bias = None if causal else _score_bias(query.dtype, *masks, self.num_heads)
        dropout = self.dropout if self.training else 0.0
        weights: Tensor | None = None
        if need_weights:
            made, weights = _weighted(q, k, v, bias, dropout)
            weights = weights.mean(dim=1) if average_attn_weights else weights
        else:
            made = F.scaled_dot_product_attention(q, k, v, bias, dropout, causal)
        # As torch has it, positions come first in memory: dropout behind it draws in that order.
        made = self.out_proj(made.permute(2, 0, 1, 3).flatten(2))
        return made.transpose(0, 1) if self.batch_first else made, weights

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """Queries, keys and values; of one tensor or of two equal ones in a single product."""
        if query is key is value:
            return list(self._product(query, 0, 3).chunk(3, dim=-1))
        first = self._product(query, 0, 1)
        if key is value:
            return [first, *self._product(key, 1, 3).chunk(2, dim=-1)]
        return [first, self._product(key, 1, 2), self._product(value, 2, 3)]

    def _product(self, x: Tensor, begin: int, end: int) -> Tensor:
        """The product with some of the three matrices that are one below the other."""
        if (begin, end) not in self.indices:
            self.indices[begin, end] = self._new_index(begin, end)
        index, first, last = self.indices[begin, end]
        bias = self.dense("in_proj_bias")
        if bias is not None:
            bias = bias[begin * self.embed_dim : end * self.embed_dim]
        return plain_product(x, self.in_proj_weight[first:last], bias, index)

    def _new_index(self, begin: int, end: int) -> tuple[LinearIndex, int, int]:
        """Where the kernels find weights of some matrices, and which weights these are."""
        mask = self.packed["in_proj_weight"].mask
        rows = [which * self.embed_dim for which in (0, begin, end)]
        first, own = (int(mask[a:b].count_nonzero()) for a, b in pairwise(rows))
        return LinearIndex.from_mask(mask[rows[1] : rows[2]]), first, first + own

    def _heads(self, x: Tensor) -> Tensor:
        """[..., features] -> [batch, heads, positions, features of a head]."""
        x = x.unflatten(-1, (self.num_heads, self.head_dim))
        return x.transpose(1, 2) if self.batch_first else x.permute(1, 2, 0, 3)

    def _takes(self, query: Tensor, key: Tensor, value: Tensor, masks: tuple[Any, Any]) -> bool:
        """Whether this is a call that the kernels know; torch computes any other, or refuses it."""
        given = query, key, value
        if self.way == DENSE or any(x.is_nested or x.ndim != 3 or not x.numel() for x in given):
            return False
        if any(x.shape[-1] != self.embed_dim for x in given) or key.shape != value.shape:
            return False
        batch, length = (0, 1) if self.batch_first else (1, 0)
        count, targets, sources = query.shape[batch], query.shape[length], key.shape[length]
        padding, between = (None if mask is None else mask.shape for mask in masks)
        fits = key.shape[batch] == count and padding in (None, (count, sources))
        pairs = ((targets, sources), (count * self.num_heads, targets, sources))
        return (
            fits
            and (between is None or between in pairs)
            and all(map(readable, (*given, self.in_proj_weight)))
        )

    def _in_torch(self, *args: Any) -> tuple[Tensor, Tensor | None]:
        """Torch's own layer, with the weights and their zeros."""
        if DENSE not in self.indices:
            self.indices[DENSE] = self.kind(
                *(self.embed_dim, self.num_heads, self.dropout),
                bias="in_proj_bias" in self.packed,
                batch_first=self.batch_first,
                device="meta",
            )
        layer = self.indices[DENSE].train(self.training)
        weights = {name: self.whole(name) for name in self.packed}
        last = self.out_proj
        own = last.packed if isinstance(last, PackedModule) else dict(last.named_parameters())
        read = last.whole if isinstance(last, PackedModule) else last.get_parameter
        weights |= {f"out_proj.{name}": read(name) for name in own}
        return torch.func.functional_call(layer, weights, args)

    def extra_repr(self) -> str:
        """For print(model)."""
        kept = self.packed["in_proj_weight"].kept
        return f"{self.embed_dim}, num_heads={self.num_heads}, kept={kept:,}"


def _weighted(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, dropout: float
) -> tuple[Tensor, Tensor]:
    """Attention by the weights that it returns as well."""
    scores = (query * math.sqrt(1 / query.shape[-1])) @ key.transpose(-1, -2)
    weights = (scores if bias is None else scores + bias).softmax(dim=-1)
    weights = F.dropout(weights, dropout) if dropout else weights
    return weights @ value, weights


def _score_bias(
    dtype: torch.dtype, padding: Tensor | None, between: Tensor | None, heads: int
) -> Tensor | None:
    """What is added to the scores [batch, heads, targets, sources]: minus infinity where masked."""
    parts = []
    if padding is not None:  # [batch, sources]
        parts.append(_as_numbers(padding, dtype)[:, None, None])
    if between is not None:  # [targets, sources], or one for each head of each element
        numbers = _as_numbers(between, dtype)
        parts.append(numbers if between.ndim == 2 else numbers.unflatten(0, (-1, heads)))
    return sum(parts[1:], parts[0]) if parts else None


def _as_numbers(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.is_floating_point():
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, -math.inf)
