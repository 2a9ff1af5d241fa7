"""Which runs the user of `snip runs` means: by texts and filters, or by a part of a name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from snip.common.errors import InputError, nearest
from snip.common.text import listed as few
from snip.common.text import shown
from snip.methods import METHODS
from snip.models import MODELS
from snip.runs import RunConfig
from snip.runs.listing import DAMAGED, STATES, Listed, listed, run_folders
from snip.runs.naming import look
from snip.runs.settings import name_in_words, told_apart, value_in_words

DENSE = "dense"
FEW = 5  # runs of which a message names the settings


@dataclass(frozen=True)
class Filters:
    """What `list` is to show alone; None is everything."""

    model: str | None
    method: str | None
    state: str | None

    def __post_init__(self) -> None:
        known = {"method": (*METHODS, DENSE), "state": (*STATES, DAMAGED)}
        for kind, names in known.items():
            given = getattr(self, kind)
            if given is not None and given not in names:
                raise nearest(kind, given, names)
        if self.model is not None and ":" not in self.model and self.model not in MODELS:
            raise nearest("model", self.model, MODELS)

    def take(self, run: Listed) -> bool:
        """Whether a run is to be shown."""
        method = run.config.method if run.config.sparsity else DENSE
        asked, found = (self.model, self.method, self.state), (run.config.model, method, run.state)
        return all(one is None or one == other for one, other in zip(asked, found, strict=True))

    @property
    def take_damaged(self) -> bool:
        """Whether runs that cannot be read are to be told: their settings are not known."""
        return self.state in (None, DAMAGED)


def read_all(folders: Iterable[Path]) -> tuple[list[Listed], dict[Path, InputError]]:
    """The runs in these folders, and why each of the damaged ones cannot be read."""
    runs, damaged = [], dict[Path, InputError]()
    for folder in folders:
        try:
            runs.append(listed(folder))
        except InputError as error:
            damaged[folder] = error
    return runs, damaged


def differing(runs: Sequence[Listed]) -> list[str]:
    """For each run the settings that tell it from those whose names look alike, in words."""
    return told_apart([run.config for run in runs], look)


def searched(run: Listed, apart: str) -> str:
    """What the texts of `list` are looked for in: name, settings, and what tells it `apart`."""
    return "\n".join([run.folder.name, look(run.config), apart, *_unusual(run.config)])


def _unusual(config: RunConfig) -> list[str]:
    """The settings that are not as usual, in words; seeds are in the names."""
    return [
        f"{name_in_words(name)} {value_in_words(value)}"
        for name, value in config.identity().items()
        if name != "seed"
    ]


def has(words: str, text: str) -> bool:
    """Whether a text is in these words, in large or small letters."""
    return text.lower() in words.lower()


def chosen(out: Path, names: Sequence[str], *, least: int = 1) -> list[Path]:
    """The folder of each name; a part of at least so many characters is enough if one run has it.

    Of what is to be removed more is asked: "." and an empty variable are parts of names too.
    """
    known = {path.name: path for path in run_folders(out)}
    found = []
    for name in names:
        alike = [known[name]] if name in known else [p for n, p in known.items() if has(n, name)]
        if name not in known and len(name.strip()) < least:
            raise InputError(
                f"{name!r} is too little of a run's name: give at least {least} characters of it, "
                "such as those that it ends with."
            )
        if not alike:
            raise nearest("run", name, known)
        if len(alike) > 1:
            raise _ambiguous(name, alike)
        found.append(alike[0])
    return found


def _ambiguous(name: str, alike: Sequence[Path]) -> InputError:
    """The error for a part of several names, with the settings that tell those apart."""
    runs, _ = read_all(alike[:FEW])  # of one that cannot be read the name says all
    apart = [
        f"{run.folder.name} has {settings}"
        for run, settings in zip(runs, differing(runs), strict=True)
        if settings
    ]
    more = f" {'; '.join(apart)}." if apart else ""
    names = few([path.name for path in alike])
    return InputError(
        f"{shown(name)} is a part of {len(alike)} names ({names}): give more of it.{more}"
    )
