"""What a user's mistake raises: a sentence with the value, the reason and the fix."""

from __future__ import annotations

import difflib
import inspect
import re
import reprlib
import warnings
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

LONGEST = 2000  # characters of a message: it may quote a file, which may have megabytes of them

# Packages between a warning and the line of the user's that it is about: an optimiser's step, for
# one, calls us from inside torch.
BETWEEN = ("snip", "torch", "contextlib")

# Of two names with this much in common (difflib's measure) one is probably a slip for the other.
LIKE = 0.6


class InputError(ValueError):
    """A mistake in what the user gave; nothing was changed."""

    def __str__(self) -> str:
        # A message may quote a file, and a terminal obeys what a file holds.
        return escaped(shortened(str(self.args[0])), keep="\n") if self.args else ""


class KindError(InputError, TypeError):
    """A value of the wrong kind."""


class FileError(InputError, OSError):
    """A file that is missing, corrupt, or cannot be written."""


class MissingPackageError(InputError, ImportError):
    """An optional package that is needed here is not installed."""


class RankError(RuntimeError):
    """Another process of a distributed group is gone or silent; nothing was changed."""


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
    """Warn, but only the first time that this process has the same to say."""
    warn(sentence)


def escaped(text: str, keep: str = "") -> str:
    """Text that a terminal only shows: control characters, but those in `keep`, as \\x1b."""
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text
    )


class _Short(reprlib.Repr):
    """Python's repr, of a few parts of a few levels: it takes no time either, whatever the value.

    Containers that hold one another several times have a repr that never ends.
    """

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxdict = 3, 4
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = 6
        self.maxstring = self.maxother = 100

    def repr_int(self, x: int, _level: int) -> str:
        # Python refuses to write a number of thousands of digits.
        return repr(x) if abs(x) < 1 << 256 else f"a number of {x.bit_length()} bits"

    def repr_bytes(self, x: bytes, _level: int) -> str:
        return repr(x[:20]) + ("..." if len(x) > 20 else "")


_SHORT = _Short()


def shown(value: Any) -> str:
    """A value as a message quotes it: its repr, shortened."""
    return shortened(_SHORT.repr(value), 300)


def shortened(text: str, most: int = LONGEST) -> str:
    """Text without what is beyond so many characters."""
    return text if len(text) <= most else f"{text[:most]}..."


def listed(names: Sequence[object]) -> str:
    """The first few of many names."""
    few = ", ".join(shown(name) for name in names[:5])
    return few + (f" and {len(names) - 5} more" if len(names) > 5 else "")


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


def first_line(error: BaseException) -> str:
    """What an error says, without the rest of a long message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def unforeseen(error: BaseException) -> str:
    """What an error says that is no sentence of ours: its kind, and its first line."""
    return f"{type(error).__name__}: {first_line(error)}"


def first_sentence(text: str) -> str:
    """The first sentence of a message, for a table: files by their names, without their folders."""
    # Of "cannot read /home/me/runs/a.json (damaged): ..." the folders say who did it where.
    plain = re.sub(r"(?:[A-Za-z]:)?(?:[\w.~-]*[/\\])+(?=[\w.-])", "", text.strip())
    lines = plain.splitlines() or [""]
    return re.split(r"(?<=[.!?])\s", lines[0], maxsplit=1)[0]


def _letters(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())
