"""Packages that only an extra installs: imported when they are needed, missed in one sentence."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from snip.common.errors import MissingPackageError, first_line


def imported(
    names: str | tuple[str, ...], what: str, extra: str, *, library: str | None = None
) -> Any:
    """The first of these modules that can be imported, or an error with the line to install it.

    `library` is what is missed if the modules belong to a package that is there without it.
    """
    names = (names,) if isinstance(names, str) else names
    for name in names:
        try:
            return import_module(name)
        except ImportError as error:
            missing = error
    raise MissingPackageError(
        f"{what} needs {library or names[0].partition('.')[0]} ({first_line(missing)}): "
        f"run  pip install 'snip-prune[{extra}]'"
    ) from missing
