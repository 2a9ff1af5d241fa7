"""What a user's mistake raises: a sentence with the value, the reason and the fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

# Of two names with this much in common (difflib's measure) one is probably a slip for the other.
LIKE = 0.6


class InputError(ValueError):
    """A mistake in what the user gave; nothing was changed."""

    def __str__(self) -> str:
        # A message may quote a file, and a terminal obeys what a file holds.
        return escaped(str(self.args[0]), keep="\n") if self.args else ""


class KindError(InputError, TypeError):
    """A value of the wrong kind."""


class FileError(InputError, OSError):
    """A file that is missing, corrupt, or cannot be written."""


class MissingPackageError(InputError, ImportError):
    """An optional package that is needed here is not installed."""


class SnipWarning(UserWarning):
    """Something that a user would want to know before training for hours."""


def escaped(text: str, keep: str = "") -> str:
    """Text that a terminal only shows: control characters, but those in `keep`, as \\x1b."""
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text
    )


def listed(names: Sequence[object]) -> str:
    """The first few of many names."""
    shown = ", ".join(repr(name) for name in names[:5])
    return shown + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def nearest(kind: str, name: str, known: Iterable[str]) -> InputError:
    """The error for an unknown name, with the nearest known one."""
    names = sorted(known)
    plain = {_letters(known_name): known_name for known_name in names}
    wanted = _letters(str(name))
    # "lenet5" is the beginning of "lenet-5-caffe", though "alexnet-s" shares as many letters.
    close = [p for p in plain if wanted and p.startswith(wanted)]
    close = close or difflib.get_close_matches(wanted, plain, n=1, cutoff=LIKE)
    hint = f"did you mean {plain[close[0]]!r}? " if close else ""
    return InputError(f"unknown {kind} {name!r}: {hint}Known: {', '.join(names)}.")


def first_line(error: Exception) -> str:
    """What an error says, without the rest of a long message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _letters(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())
