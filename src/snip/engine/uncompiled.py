"""The way out of torch.compile; imported only by code that is being compiled."""

from collections.abc import Callable
from typing import Any

import torch


@torch.compiler.disable(
    reason="an accelerated network runs native code; to compile or export, use snip.densify(model)"
)
def run_uncompiled(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function as it is: what surrounds it is compiled in two parts, before it and after."""
    return function(*arguments)
