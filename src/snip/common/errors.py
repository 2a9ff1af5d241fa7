"""Exceptions and warnings; each message has the value, the reason and the fix."""

from __future__ import annotations

import difflib
import inspect
import warnings
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import Any

from snip.common.text import escaped, first_line, shortened, shown

# Packages between a warning and the line of the user's that it is about: an optimiser's step, for
# one, calls us from inside torch.
BETWEEN = ("snip", "torch", "contextlib")

# Two names with this much in common (difflib's measure) probably differ by a typing mistake.
LIKE = 0.6


class InputError(ValueError):
    """A mistake in what the user gave; nothing was changed."""

    def __str__(self) -> str:
        # A message may quote a file, and a terminal would obey its control characters.
        return escaped(shortened(str(self.args[0])), keep="\n") if self.args else ""


class KindError(InputError, TypeError):
    """A value of the wrong type."""


class FileError(InputError, OSError):
    """A file that is missing, corrupt, or cannot be written."""


class MissingPackageError(InputError, ImportError):
    """An optional package that is needed here is not installed."""


class RankError(RuntimeError):
    """A different process of a distributed group ended or is silent; nothing was changed."""


class SnipWarning(UserWarning):
    """Something that a user would want to know before training for hours."""


def warn(sentence: str) -> None:
    """Warn at the line of the user's own code that led here, from however deep inside."""
    level, frame = 1, inspect.currentframe()
    while frame and frame.f_globals.get("__name__", "").partition(".")[0] in BETWEEN:
        level, frame = level + 1, frame.f_back
    warnings.warn(sentence, SnipWarning, stacklevel=level)


@cache
def warn_once(sentence: str) -> None:
    """Warn, but give the same sentence only once in a process."""
    warn(sentence)


def nearest(kind: str, name: str, known: Iterable[str]) -> InputError:
    """The error for an unknown name, with the nearest known one."""
    names = sorted(known)
    plain = {_letters(known_name): known_name for known_name in names}
    wanted = _letters(shortened(str(name), 100))
    # "lenet5" is the beginning of "lenet-5-caffe", though "alexnet-s" shares as many letters.
    close = [p for p in plain if wanted and p.startswith(wanted)]
    close = close or difflib.get_close_matches(wanted, plain, n=1, cutoff=LIKE)
    hint = f": did you mean {plain[close[0]]!r}?" if close else "."
    return InputError(f"unknown {kind} {shown(name)}{hint} Known: {', '.join(names)}.")


def _letters(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def imported(
    names: str | tuple[str, ...], what: str, extra: str, *, library: str | None = None
) -> Any:
    """Import the first module that is installed; raise with the command to install it otherwise.

    `library` names the missing package where the modules belong to one that is there without it.
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
