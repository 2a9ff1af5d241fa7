"""Which rule an operation follows, found through the one table of operations.

A rule keeps what matters of a function: which results may be non-zero, and on which arguments
they depend. Values stay non-negative, so that nothing cancels: x - y becomes x + y. A function
without a rule (reshape, cat, sum, ...) is used as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from snip.network.operations import Kind, operation_of
from snip.paths import elementwise, layers, sequences

Rule = Callable[..., Any]  # rule(function, *args, **kwargs): `function` is the one replaced

BY_KIND: dict[Kind, Rule] = {
    Kind.RECTIFIER: elementwise.pointwise,
    Kind.POINTWISE: elementwise.pointwise,
    Kind.PRELU: elementwise.pointwise,
    Kind.DROPOUT: elementwise.pointwise,
    Kind.CAST: layers.cast,
    Kind.SUM: elementwise.plus,
    Kind.PRODUCT: elementwise.elementwise_product,
    Kind.QUOTIENT: elementwise.quotient,
    Kind.POWER: elementwise.power,
    Kind.LINEAR: elementwise.product,
    Kind.CONVOLUTION: elementwise.product,
    Kind.TRANSPOSED_CONVOLUTION: elementwise.product,
    Kind.MATRIX_PRODUCT: elementwise.product,
    Kind.RECURRENT: sequences.recurrent,
    Kind.CELL: sequences.cell,
    Kind.BATCH_NORM: layers.channel_norm,
    Kind.MAX_POOL: layers.max_pool,
    Kind.ADAPTIVE_MAX_POOL: layers.adaptive_max_pool,
    Kind.EXTREME: elementwise.largest,
}
BY_NAME: dict[str, Rule] = {  # of Kind.OTHER
    "local_response_norm": elementwise.same,
    "alpha_dropout": elementwise.same,
    "feature_alpha_dropout": elementwise.same,
    "log_softmax": elementwise.never_zero,
    "softmax": elementwise.softmax,
    "softmin": elementwise.softmax,
    "gumbel_softmax": elementwise.softmax,
    "logsumexp": elementwise.largest,
    "max": elementwise.extremum,
    "min": elementwise.extremum,
    "norm": elementwise.norm,
    "vector_norm": elementwise.norm,
    "std": elementwise.deviation,
    "var": elementwise.deviation,
    "std_mean": elementwise.deviation_and_mean,
    "var_mean": elementwise.deviation_and_mean,
    "where": elementwise.where,
    "masked_fill": elementwise.masked_fill,
    "glu": elementwise.glu,
    "cosine_similarity": elementwise.cosine_similarity,
    "pairwise_distance": elementwise.pairwise_distance,
    "layer_norm": layers.layer_norm,
    "rms_norm": layers.rms_norm,
    "group_norm": layers.group_norm,
    "instance_norm": layers.channel_norm,
    "normalize": layers.normalize,
    "_weight_norm": layers.weight_norm,
    "embedding": layers.embedding,
    "embedding_bag": layers.embedding,
    "scaled_dot_product_attention": sequences.scaled_dot_product_attention,
    "multi_head_attention_forward": sequences.multi_head_attention,
}


def rule_of(function: Any) -> Rule | None:
    """The rule of a PyTorch function; None for one that is used as it is."""
    found = operation_of(function)
    return BY_KIND.get(found.kind) or BY_NAME.get(found.name)
