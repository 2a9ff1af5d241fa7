"""Claims about what survives in the first layer: figures 2, A1 and A2."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from snip.common.text import short_percent
from snip.experiments.claims.facts import Fact, Records
from snip.experiments.fig2 import PLAIN, SETS, called
from snip.experiments.kinds import Record
from snip.experiments.measures.map_measures import (
    BETWEEN_SEEDS,
    CHANGED,
    INVERSION,
    MEAN,
    READ_BACK,
    READ_BACK_WRONG,
    WITH_SNIP,
    WITH_WRONG,
)
from snip.experiments.records.chance import Spread, chance, is_above
from snip.experiments.records.parts import MEASURED

ENOUGH = 0.9  # share of the maps that a class must be read back from; by chance it is 0.1
CLASSES = 10


def read_back(records: Records) -> Iterator[Fact]:
    """Whether the class can be told from a map of SNIP."""
    yield from _lacking(records, "fig2", "figA1")
    for name, data, line, _ in _highest(records, "fig2", "figA1"):
        by_mean = line[f"class read back by {MEAN}"]
        yield Fact(
            f"{data} at {short_percent(line['sparsity'])} ({name}): the class is read back from "
            f"{short_percent(line[READ_BACK])} of the maps by how far its mean image is from the "
            f"mean pixel, from {short_percent(by_mean)} by the mean image itself",
            None if name == "figA1" else line[READ_BACK] >= ENOUGH,
            aside=name == "figA1",  # what the network sees is the same, with its sign turned
        )


def discriminative(records: Records) -> Iterator[Fact]:
    """Whether it is the task that a map shows: what wrong labels change."""
    yield from _lacking(records, "fig2", "figA1")
    for name, data, line, _ in _highest(records, "fig2", "figA1"):
        about = f"{data} at {short_percent(line['sparsity'])} ({name})"
        yield Fact(
            f"{about}: the class is read back from {short_percent(line[READ_BACK])} of the maps, "
            f"and from {short_percent(line[READ_BACK_WRONG])} if every label is wrong; the maps of "
            f"true and wrong labels correlate by {line[WITH_WRONG]:.3f}",
            aside=True,
        )


def inversion(records: Records) -> Iterator[Fact]:
    """Whether SNIP's maps are the same on inverted data."""
    yield from _lacking(records, "figA1")
    for name, data, line, measured in _highest(records, "figA1"):
        changed, cases = _changed(measured["measures"], line["kind"])
        yield Fact(
            f"{data} ({name}): at {short_percent(line['sparsity'])} maps of plain and inverted "
            f"data correlate by {line[INVERSION]:.3f}, inverted ones of two seeds by "
            f"{line[BETWEEN_SEEDS]:.3f}; over all sparsities inversion changes {changed} of "
            f"{cases} maps more than another seed changes the plain ones",
            aside=True,
        )


def by_gradient(records: Records) -> Iterator[Fact]:
    """Whether dL/dw gives other maps than SNIP, less steady ones, and others when inverted."""
    yield from _lacking(records, "figA2", "fig2")
    snip = {data: lines for _, data, _, lines in _highest(records, "fig2")}
    for name, data, line, measured in _highest(records, "figA2"):
        if line["kind"] != PLAIN:
            continue
        if data not in snip:  # which is told above
            continue
        own = _last(snip[data]["measures"], PLAIN)
        at = short_percent(line["sparsity"])
        yield Fact(
            f"{data} at {at} ({name}): maps of dL/dw and SNIP correlate by {line[WITH_SNIP]:.3f}, "
            f"those of SNIP of two seeds (fig2) by {own[BETWEEN_SEEDS]:.3f}",
            line[WITH_SNIP] < own[BETWEEN_SEEDS],
        )
        yield _less_steady(f"{data} ({name})", measured, snip[data])
        changed, cases = _changed(measured["measures"], PLAIN)
        snips, _ = _changed(snip[data]["measures"], PLAIN)
        yield Fact(
            f"{data} ({name}): inversion changes {changed} of {cases} maps of dL/dw more than "
            f"another seed, and {snips} of SNIP's (fig2); at {at} plain and inverted correlate by "
            f"{line[INVERSION]:.3f} for dL/dw, by {own[INVERSION]:.3f} for SNIP",
            aside=True,
        )


def _less_steady(about: str, measured: Record, snip: Record) -> Fact:
    """Whether maps change more over the sparsity than SNIP's of the same seeds."""
    # Seeds are numbered from zero in both; one of them may have been given more.
    pairs = zip(measured["steadiness"][PLAIN], snip["steadiness"][PLAIN], strict=False)
    ours, theirs = zip(*pairs, strict=True)
    falls = [other - own for own, other in zip(ours, theirs, strict=True)]
    found = Spread(statistics.stdev(falls), len(falls))
    fall = statistics.mean(falls)
    return Fact(
        f"{about}: maps at lower sparsities correlate with that at the highest by "
        f"{statistics.mean(ours):.3f} for dL/dw, by {statistics.mean(theirs):.3f} for SNIP; seed "
        f"by seed {fall:+.3f} more for SNIP, with a standard error of {found.error:.3f}",
        is_above(fall, chance(found)),
    )


def _changed(lines: list[Record], kind: str) -> tuple[int, int]:
    """How many maps inversion changes more than another seed does, and of how many."""
    found = [line[CHANGED] for line in lines if line["kind"] == kind]
    return sum(found), CLASSES * len(found)


def _last(lines: list[Record], kind: str) -> Record:
    return [line for line in lines if line["kind"] == kind][-1]


def _highest(records: Records, *names: str) -> Iterator[tuple[str, str, Record, Record]]:
    """The line of the highest sparsity of every data set and kind, and all of the data set's."""
    for name in names:
        measured: Record = records.get(name, {}).get(MEASURED, {})
        for dataset in SETS if _has_yardsticks(measured) else ():
            for kind in measured["shown"]:
                line = _last(measured[dataset]["measures"], kind)
                yield name, called(dataset, kind), line, measured[dataset]


def _lacking(records: Records, *names: str) -> Iterator[Fact]:
    """What is not measured yet, or by a version that measured less, which decides nothing."""
    for name in (name for name in names if name in records):
        measured = records[name].get(MEASURED)
        if measured is None:
            yield Fact(f"{name} is not measured yet", missing=True)
        elif not _has_yardsticks(measured):
            said = f"{name} was measured by an older version, without yardsticks and controls"
            yield Fact(f"{said}: `snip reproduce {name}` measures it again")


def _has_yardsticks(measured: Record) -> bool:
    return "steadiness" in measured.get(SETS[0], {})
