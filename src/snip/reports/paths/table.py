"""Which rule stands for which PyTorch function, in all its spellings.

A rule keeps what matters of a function: which results may be non-zero, and on which arguments
they depend. Values stay non-negative, so that nothing cancels: x - y becomes x + y. A function
without a rule (reshape, cat, sum, ...) is used as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from snip.reports.paths import elementwise, layers, sequences

Rule = Callable[..., Any]  # rule(function, *args, **kwargs): `function` is the one replaced

_PLACES = (torch, F, torch.Tensor, torch._C._nn, torch.special, torch.linalg)

_NAMES: dict[Rule, str] = {
    # f(0) = 0: zero stays zero. Neither dropout nor rounding nor detaching cuts a path.
    elementwise.through: """
        relu relu6 leaky_relu elu selu celu gelu silu mish hardtanh hardswish tanh tanhshrink
        softshrink hardshrink softsign threshold rrelu prelu erf sin tan asin atan sinh asinh atanh
        log1p expm1 abs absolute neg negative positive sqrt square clamp clip clamp_min clamp_max
        round floor ceil trunc sign sgn nan_to_num detach local_response_norm dropout dropout1d
        dropout2d dropout3d alpha_dropout feature_alpha_dropout feature_dropout""",
    # f(0) is not 0: the result is something even where the argument is zero.
    elementwise.never_zero: """
        sigmoid hardsigmoid logsigmoid softplus exp exp2 log log2 log10 log_softmax cos acos cosh
        rsqrt reciprocal erfc""",
    elementwise.softmax: "softmax softmin gumbel_softmax",
    elementwise.product: """
        linear bilinear matmul mm bmm mv dot inner outer einsum tensordot addmm addmv baddbmm addbmm
        conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d __matmul__
        __rmatmul__ multi_dot chain_matmul""",
    elementwise.elementwise_product: "mul multiply __mul__ __rmul__ __imul__",
    elementwise.plus: """
        add __add__ __radd__ __iadd__ sub subtract rsub __sub__ __rsub__ __isub__
        maximum minimum""",
    elementwise.quotient: "div divide true_divide __truediv__ __itruediv__",
    elementwise.inverse_quotient: "__rdiv__ __rtruediv__",
    elementwise.power: "pow __pow__",
    elementwise.reverse_power: "__rpow__",
    elementwise.largest: "amax amin logsumexp",
    elementwise.deviation: "std var",
    elementwise.deviation_and_mean: "std_mean var_mean",
    elementwise.norm: "norm vector_norm",
    elementwise.extremum: "max min",
    elementwise.where: "where",
    elementwise.masked_fill: "masked_fill",
    elementwise.glu: "glu",
    elementwise.cosine_similarity: "cosine_similarity",
    elementwise.pairwise_distance: "pairwise_distance",
    layers.layer_norm: "layer_norm",
    layers.rms_norm: "rms_norm",
    layers.group_norm: "group_norm",
    layers.normalize: "normalize",
    layers.weight_norm: "_weight_norm",
    layers.embedding: "embedding embedding_bag",
    layers.cast: "to type type_as float double half bfloat16",
    layers.max_pool(1): "max_pool1d max_pool1d_with_indices",
    layers.max_pool(2): "max_pool2d max_pool2d_with_indices",
    layers.max_pool(3): "max_pool3d max_pool3d_with_indices",
    layers.adaptive_max_pool(1): "adaptive_max_pool1d",
    layers.adaptive_max_pool(2): "adaptive_max_pool2d",
    layers.adaptive_max_pool(3): "adaptive_max_pool3d",
    sequences.recurrent(sequences.lstm_step): "lstm",
    sequences.recurrent(sequences.gru_step): "gru",
    sequences.recurrent(sequences.rnn_step): "rnn_tanh rnn_relu",
    sequences.cell(sequences.lstm_step): "lstm_cell",
    sequences.cell(sequences.gru_step): "gru_cell",
    sequences.cell(sequences.rnn_step): "rnn_tanh_cell rnn_relu_cell",
    sequences.scaled_dot_product_attention: "scaled_dot_product_attention",
    sequences.multi_head_attention: "multi_head_attention_forward",
}


def _table(suffix: str) -> dict[Any, tuple[Any, Rule]]:
    """Function -> (the function that is not in place, its rule)."""
    return {
        getattr(place, name + suffix): (getattr(place, name), rule)
        for rule, names in _NAMES.items()
        for name in names.split()
        for place in _PLACES
        if hasattr(place, name + suffix) and hasattr(place, name)
    }


RULES: dict[Any, Rule] = {function: rule for function, (_, rule) in _table("").items()} | {
    # torch.batch_norm and torch.instance_norm order their arguments otherwise.
    F.batch_norm: layers.channel_norm,
    F.instance_norm: layers.channel_norm,
}
IN_PLACE = _table("_")
