"""Warnings of Snip that a test expects beside what it asserts; any other is an error in tests."""

import pytest

MESSAGES = {
    # of a network too tiny to lose nothing
    "losses": r"((nothing|too little) is left of|\d+ of \d+ outputs are not reached)",
    "left out": r"[\d.]+% of the model's parameters are not up for pruning",
    "pattern": r"granularity '\w+.\w+' leaves",
    "untraced": r"\w+ cannot be traced",
    "unused": r"the loss does not depend on",
    "dense": r"\w+ runs dense",
    "rounds": r"at sparsity [\d.]+, on the way to the one asked for",
    "zeros": r"parts that start at zero",
    "optimiser": r"this \w+ trains nothing",
}


def expects(*kinds: str) -> pytest.MarkDecorator:
    """Let a test pass with these kinds of warnings."""
    category = "snip.common.errors.SnipWarning"
    filters = [f"ignore:{MESSAGES[kind]}:{category}" for kind in kinds]
    return pytest.mark.filterwarnings(*filters)
