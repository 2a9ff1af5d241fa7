"""The kinds of operations in a forward: what each does to units, positions and zeros.

A unit is a channel, feature or hidden unit; a position is a pixel or a step of a sequence.
"""

from __future__ import annotations

from enum import Enum


class Kind(Enum):
    """Operations that are read in the same way by everyone who reads a forward."""

    # Each number by itself.
    POINTWISE = "the same function of every number"
    RECTIFIER = "pointwise, and without gradient where the result is at its lower bound"
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
