"""Loads the library that is linked to torch, if one was built for this very torch."""

import importlib.util
import os
from functools import cache
from importlib.machinery import ExtensionFileLoader
from typing import Any

from snip.engine import build


@cache
def extension() -> Any:
    """The library as a Python module, or None: Python does its work then, in more time.

    It was built for one torch and one Python, and is not even loaded in another. The environment
    variables SNIP_NODE=python and SNIP_NO_KERNELS leave it out.
    """
    path = build.NODE_LIBRARY
    if os.environ.get("SNIP_NODE") == "python" or build.is_unwanted():
        return None
    if not build.is_made_of(path, build.node_origin()):
        return None
    try:
        loader = ExtensionFileLoader("_node", str(path))
        spec = importlib.util.spec_from_file_location("_node", path, loader=loader)
        assert spec is not None
        made = importlib.util.module_from_spec(spec)
        loader.exec_module(made)
    except (ImportError, OSError):
        return None
    return made


def forget_extension() -> None:
    """Read SNIP_NODE again at the next call; for tests."""
    extension.cache_clear()
