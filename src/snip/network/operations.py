"""The one table of operations: what Snip knows of each, under all its PyTorch spellings.

To teach Snip another operation, add its name to the row that describes it: the reports of paths,
the units that go together and the engine's layouts all follow. An operation without a row is run
as it is, keeps whatever it reads from being cut, and gets plain tensors.
A unit is a channel, feature or hidden unit; a position is a pixel or a step of a sequence.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn


class Kind(Enum):
    """Operations that are read in the same way by everyone who reads a forward."""

    # Each number by itself.
    POINTWISE = "the same function of every number"
    PRELU = "pointwise, with a slope that trains"
    DROPOUT = "random in train mode, the same function of every number in eval mode; 0 stays 0"
    CAST = "another type or device for the same numbers"
    SAME = "the same numbers"
    # Two tensors, number by number.
    SUM = "not zero only where one of the two is not zero: sums, differences, the larger of two"
    PRODUCT = "zero where one of the two is"
    QUOTIENT = "zero where the first is"
    POWER = "the first to the power of the second"
    # Layers: each unit of the result reads many units.
    LINEAR = "a matrix applied to the last dimension"
    CONVOLUTION = "a matrix applied to the units of neighbouring positions"
    TRANSPOSED_CONVOLUTION = "a convolution that spreads each position over several"
    MATRIX_PRODUCT = "a product of tensors that mixes units"
    RECURRENT = "a layer that reads its own units of the step before"
    CELL = "one step of a recurrent layer"
    BATCH_NORM = "each unit shifted and scaled by itself"
    # Positions: each unit by itself.
    MAX_POOL = "the largest number of a window; the border never wins"
    AVERAGE_POOL = "the mean of a window; the border counts as zeros"
    ADAPTIVE_AVERAGE_POOL = "the mean of windows as large as the size of the image asks for"
    ADAPTIVE_MAX_POOL = "the largest number of such windows"
    PAD = "new positions at the border"
    UPSAMPLE = "new positions between the old"
    MEAN = "the mean along dimensions"
    EXTREME = "the largest or smallest number along dimensions"
    TOTAL = "the sum along dimensions: it grows with their size"
    # Dimensions are moved; the numbers stay.
    FLATTEN = "several dimensions become one"
    VIEW = "the same numbers in another shape"
    MOVE = "dimensions change places, come or go, or are cut to a part"
    CONCATENATE = "tensors side by side along one dimension"
    ITEM = "an item of a tuple, or a part of a tensor"
    # Questions about a tensor.
    SIZE = "a size, or all of them"
    ATTRIBUTE = "getattr(tensor, name)"
    QUESTION = "a question whose answer does not depend on the number of units"
    # Known by name only.
    OTHER = "mixes or chooses units in a way of its own"


@dataclass(frozen=True)
class Operation:
    """One operation, however it is spelled."""

    name: str  # as PyTorch's function is called: max_pool2d, also for nn.MaxPool2d
    kind: Kind
    zero_stays: bool = False  # of a function of single numbers: f(0) = 0
    on_layouts: bool = False  # may run on the engine's layouts

    @property
    def dimensions(self) -> int:
        """Number of dimensions of positions in its name: 2 for max_pool2d; 0 if it has none."""
        digits = re.search("([123])d", self.name)
        return int(digits[1]) if digits else 0


def _row(kind: Kind, names: str, *, zero: bool = False, layouts: bool = False) -> list[Operation]:
    """Make the operations of a row. A name with `Nd` stands for three: 1d, 2d and 3d."""
    each = [name.replace("Nd", f"{d}d") for name in names.split() for d in (1, 2, 3)]
    return [Operation(name, kind, zero, layouts) for name in dict.fromkeys(each)]


# Only functions with a finite value and derivative everywhere may run on the engine's layouts:
# lanes beyond the batch hold numbers that nobody asked for, and log(0) there would spread.
OPERATIONS: tuple[Operation, ...] = (
    # Each number by itself.
    *_row(
        Kind.POINTWISE,
        """relu relu6 leaky_relu elu selu celu gelu silu mish hardtanh hardswish tanh tanhshrink
        softshrink hardshrink softsign threshold erf sin atan asinh abs absolute neg negative
        square clamp clip clamp_min clamp_max round floor ceil trunc sign sgn pos positive""",
        zero=True,
        layouts=True,
    ),
    *_row(Kind.POINTWISE, "sigmoid hardsigmoid logsigmoid softplus cos erfc", layouts=True),
    *_row(Kind.POINTWISE, "tan asin sinh atanh log1p expm1 sqrt nan_to_num detach", zero=True),
    *_row(Kind.POINTWISE, "exp exp2 log log2 log10 acos cosh rsqrt reciprocal"),
    *_row(Kind.PRELU, "prelu", zero=True),
    *_row(Kind.DROPOUT, "dropout dropoutNd feature_dropout rrelu", zero=True),
    *_row(Kind.CAST, "to type type_as float double half bfloat16", zero=True),
    *_row(Kind.SAME, "identity", zero=True, layouts=True),
    *_row(Kind.SAME, "contiguous clone", zero=True),
    # Two tensors, number by number.
    *_row(Kind.SUM, "add sub subtract rsub maximum minimum", layouts=True),
    *_row(Kind.PRODUCT, "mul multiply", layouts=True),
    *_row(Kind.QUOTIENT, "div divide true_divide truediv"),
    *_row(Kind.POWER, "pow"),
    # Layers.
    *_row(Kind.LINEAR, "linear"),
    *_row(Kind.CONVOLUTION, "convNd"),
    *_row(Kind.TRANSPOSED_CONVOLUTION, "conv_transposeNd"),
    *_row(
        Kind.MATRIX_PRODUCT,
        """bilinear matmul mm bmm mv dot inner outer tensordot addmm addmv baddbmm addbmm
        multi_dot chain_matmul einsum""",
    ),
    *_row(Kind.RECURRENT, "lstm gru rnn rnn_tanh rnn_relu"),
    *_row(Kind.CELL, "lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell"),
    *_row(Kind.BATCH_NORM, "batch_norm batch_normNd"),
    # Positions.
    *_row(Kind.MAX_POOL, "max_pool1d max_pool2d", layouts=True),
    *_row(Kind.MAX_POOL, "max_pool3d max_poolNd_with_indices"),
    *_row(Kind.AVERAGE_POOL, "avg_poolNd"),
    *_row(Kind.ADAPTIVE_AVERAGE_POOL, "adaptive_avg_pool1d adaptive_avg_pool2d", layouts=True),
    *_row(Kind.ADAPTIVE_AVERAGE_POOL, "adaptive_avg_pool3d"),
    *_row(Kind.ADAPTIVE_MAX_POOL, "adaptive_max_poolNd"),
    *_row(Kind.PAD, "zero_pad2d", layouts=True),
    *_row(Kind.PAD, "pad zero_pad1d zero_pad3d constant_padNd"),
    *_row(Kind.PAD, "reflection_padNd replication_padNd circular_padNd"),
    *_row(Kind.UPSAMPLE, "interpolate upsample"),
    *_row(Kind.MEAN, "mean", layouts=True),
    *_row(Kind.EXTREME, "amax amin"),
    *_row(Kind.TOTAL, "sum"),
    # Dimensions.
    *_row(Kind.FLATTEN, "flatten", layouts=True),
    *_row(Kind.VIEW, "view reshape"),
    *_row(
        Kind.MOVE,
        "squeeze unsqueeze transpose swapaxes swapdims permute movedim t narrow select unflatten",
    ),
    *_row(Kind.CONCATENATE, "cat concat concatenate"),
    *_row(Kind.ITEM, "getitem"),
    # Questions.
    *_row(Kind.SIZE, "size"),
    *_row(Kind.ATTRIBUTE, "getattr"),  # x.T and x.data
    *_row(Kind.QUESTION, "dim is_floating_point"),
    # Anything else that someone has a rule for, by its name.
    *_row(
        Kind.OTHER,
        """expand expand_as chunk split unbind diagonal view_as alpha_dropout feature_alpha_dropout
        local_response_norm max min norm vector_norm std var
        std_mean var_mean glu normalize rms_norm _weight_norm masked_fill where cosine_similarity
        pairwise_distance embedding embedding_bag logsumexp softmax softmin gumbel_softmax
        log_softmax layer_norm group_norm instance_norm instance_normNd
        scaled_dot_product_attention multi_head_attention_forward""",
    ),
)


UNKNOWN = Operation("unknown", Kind.OTHER)


def operation(node: fx.Node, module: nn.Module | None) -> Operation:
    """Look up a node of a traced graph; a layer is known only if it is PyTorch's own class."""
    if module is not None:
        return _MODULES.get(type(module), UNKNOWN)
    if node.op == "call_method":
        return _METHODS.get(str(node.target), UNKNOWN)
    return _FUNCTIONS.get(node.target, UNKNOWN) if node.op == "call_function" else UNKNOWN


def operation_of(function: Any) -> Operation:
    """Look up a function of PyTorch, a method of its tensors or a Python operator."""
    return _FUNCTIONS.get(function, UNKNOWN)


_PLACES = (torch, F, torch.Tensor, torch._C._nn, torch.special, torch.linalg, operator)
# These take the arguments of F.batch_norm and F.instance_norm in another order.
_OTHER_ARGUMENTS = (torch.batch_norm, torch.instance_norm)
# Python writes these with a sign: x + y is Tensor.__add__, and `x += y` is operator.iadd.
_SIGNS = "add sub mul truediv div pow matmul neg pos abs getitem".split()  # noqa: SIM905


def _spellings(name: str) -> Iterator[str]:
    yield from (name, f"{name}_")
    if name in _SIGNS:
        yield from (f"__{name}__", f"__r{name}__", f"__i{name}__", f"i{name}")


def _functions(name: str) -> Iterator[tuple[Any, Callable[..., Any]]]:
    """Yield each (place, function) of this name."""
    for place in _PLACES:
        function = getattr(place, name, None)
        if callable(function) and function not in _OTHER_ARGUMENTS:
            yield place, function


_CLASSES = {kind.__name__.lower(): kind for kind in vars(nn).values() if isinstance(kind, type)}
_MODULES: dict[type, Operation] = {
    _CLASSES[word]: o for o in OPERATIONS if (word := o.name.replace("_", "")) in _CLASSES
}
_METHODS = {name: o for o in OPERATIONS for name in (o.name, f"{o.name}_")}
_FUNCTIONS: dict[Any, Operation] = {
    function: o
    for o in OPERATIONS
    for name in _spellings(o.name)
    for _, function in _functions(name)
} | {getattr: _METHODS["getattr"]}

# x.relu_ -> x.relu: the same function without the write into its argument.
IN_PLACE: dict[Any, Any] = {
    getattr(place, f"{o.name}_"): function
    for o in OPERATIONS
    for place, function in _functions(o.name)
    if hasattr(place, f"{o.name}_")
}
REVERSED = (torch.Tensor.__rtruediv__, torch.Tensor.__rpow__)  # y.__rpow__(x) is x ** y


# ---- arguments of a node, given by position or by name ----


def given(node: fx.Node, index: int, name: str, default: Any = None) -> Any:
    """Argument as it stands in the graph: a number, a node, or a structure of these."""
    return node.args[index] if len(node.args) > index else node.kwargs.get(name, default)


def setting(node: fx.Node, module: Any, index: int, name: str, default: Any = None) -> Any:
    """Setting of a layer, which is its attribute, or of a function, which is an argument."""
    if module is not None:
        return getattr(module, name, default)
    return given(node, index, name, default)


def dimensions(node: fx.Node) -> tuple[int, ...] | None:
    """Return the `dim` of mean(x, dim), sum, squeeze ...; None where it is not written out."""
    dims = given(node, 1, "dim")
    dims = (dims,) if isinstance(dims, int) else tuple(dims or ())
    return dims if dims and all(isinstance(dim, int) for dim in dims) else None


def flatten_bounds(node: fx.Node, module: Any) -> tuple[int, int]:
    """First and last of the dimensions that a flatten makes one."""
    start = setting(node, module, 1, "start_dim", 0)
    return start, setting(node, module, 2, "end_dim", -1)


def flattens_rows(node: fx.Node, module: Any, rank: int = 0) -> bool:
    """Return True if a flatten makes a row of each sample; the rank may be unknown."""
    start, end = flatten_bounds(node, module)
    return start == 1 and end in (-1, rank - 1)


def averages_planes(node: fx.Node) -> bool:
    """Return True for a mean over height and width, [N, C, H, W] -> [N, C]."""
    plain = not given(node, 2, "keepdim") and "dtype" not in node.kwargs
    return plain and dimensions(node) in ((2, 3), (-2, -1))


def pool_settings(node: fx.Node, module: Any) -> tuple[Any, ...] | None:
    """Kernel, stride, padding, dilation, ceil_mode of a max pooling; None if it gives indices."""
    if setting(node, module, 6, "return_indices", False):
        return None
    kernel = setting(node, module, 1, "kernel_size")
    stride = setting(node, module, 2, "stride") or None
    padding = setting(node, module, 3, "padding", 0)
    return (
        *(kernel, stride, padding, setting(node, module, 4, "dilation", 1)),
        setting(node, module, 5, "ceil_mode", False),
    )
