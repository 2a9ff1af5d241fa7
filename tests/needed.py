"""Libraries and programs that some tests need: without one they are skipped; in CI they fail."""

import importlib
import os
from typing import Any, NoReturn

import pytest


def missing(what: str) -> NoReturn:
    """Skip the test, or the file of tests, because something is not installed."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what} In CI it must be there.", pytrace=False)
    pytest.skip(what, allow_module_level=True)


def needed(name: str) -> Any:
    """A module that an extra installs."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        missing(f"{name} is not installed ({error}).")
