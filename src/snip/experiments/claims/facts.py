"""What a claim of the paper is, what was found of it, and how that is said."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from snip.common.text import counted, short_percent
from snip.experiments.kinds import Record
from snip.experiments.records.comparison import LEAST_SEEDS, diverged, paired
from snip.experiments.records.summary import AGREES, HIGHER, LOWER, ROUNDED

Records = Mapping[str, Record]  # by the names of experiments, of those that were run
FEW_SEEDS = "of too few seeds"
AGAINST = {
    AGREES: "agrees",
    ROUNDED: "agrees by its rounding",
    HIGHER: "ours is higher",
    LOWER: "ours is lower",
}


@dataclass(frozen=True)
class Fact:
    """One finding, and whether it bears the claim out; None if it cannot tell.

    `alone`: it is of a single seed, so that nobody knows how much of it is chance. `few`: its seeds
    are too few to decide anything. `missing`: runs that it needs are not there yet. `aside`: it is
    told, but can decide nothing, and nothing waits for it: a trial on a part of the schedule, or
    networks that are not trained alike.
    """

    text: str
    holds: bool | None = None
    alone: bool = False
    few: bool = False
    missing: bool = False
    aside: bool = False


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, the rule that decides whether it holds, and where to look.

    `some`: it says that there are cases, so that a case which is none does not refute it. `forced`:
    what is said where nothing else could come out of the comparisons, so that they decide nothing.
    """

    title: str
    rule: str
    sources: tuple[str, ...]
    facts: Callable[[Records], Iterator[Fact]]
    some: bool = False
    forced: str = ""


def verdict(every: Sequence[Fact], *, some: bool = False) -> str:
    """In a few words, what the facts of a claim say together."""
    if not every:
        return "not run yet"
    facts = [fact for fact in every if not fact.aside]
    yes, no = (sum(fact.holds is holds for fact in facts) for holds in (True, False))
    open_ = [fact for fact in facts if fact.holds is None]
    missing, few = sum(fact.missing for fact in open_), sum(fact.few for fact in open_)
    words = {
        "yes": yes,
        "no": no,
        "undecided": len(open_) - missing - few,
        FEW_SEEDS: few,
        "not run yet": missing,
    }
    counts = ", ".join(f"{count} {word}" for word, count in words.items() if count)
    counts = counts or "nothing that could decide"
    if not (yes or no) or (some and not yes and open_):
        return f"open ({counts})"
    here = "so far" if missing else "here"
    if all(fact.alone for fact in facts if fact.holds is not None):
        here = "in a single seed"
    if yes and no and not some:
        return f"holds in part ({counts})"
    return f"{'holds' if yes else 'fails'} {here} ({counts})"


def number(row: Record) -> str:
    """A row's error over its seeds."""
    found, seeds, lost = row["selected"], len(row["runs"]), diverged(row)
    others = len(row.get("failed", ())) - lost
    if found is None:
        return f"{counted(lost, 'seed')} diverged" + (f", {others} failed" if others else "")
    spread = "" if found["std"] is None else f" ± {found['std']:.2f}"
    said = counted(seeds, "seed")
    said += "".join(f", {n} more {why}" for n, why in ((lost, "diverged"), (others, "failed")) if n)
    return f"{found['mean']:.2f}{spread}% ({said})"


def network_at(row: Record) -> str:
    """Which network at which sparsity a row is of."""
    config = row["config"]
    return f"{config['model']} at {short_percent(config['sparsity'])}"


def beside(row: Record) -> str:
    """The paper's number, and how ours stands to it."""
    if not row["paper"]:
        return ""
    against = row["selected"]["against"] if row["selected"] else None
    return f", the paper {row['paper']}%" + (f" ({AGAINST[against]})" if against else "")


def rows_of(records: Records, name: str) -> list[Record]:
    """All rows of an experiment, run or not; none if it is not looked at."""
    return list(records.get(name, {"rows": []})["rows"])


def is_run(row: Record) -> bool:
    """Whether it is known what comes out of a row, if only that it diverges."""
    return bool(row["runs"] or diverged(row))


def rows_run(records: Records, name: str) -> list[Record]:
    """The rows of an experiment of which it is known what comes out."""
    return [row for row in rows_of(records, name) if is_run(row)]


def seed_differences(row: Record, base: Record) -> str:
    """What `gains_by_seed` decides by where nothing diverges, in words."""
    found = paired(row, base)
    if found is None:
        return "no seed in common"
    said = f"{found.mean:+.2f} points over the {counted(found.seeds, 'seed')} of both"
    known = found.seeds >= LEAST_SEEDS
    return said + (f", with a standard error of {found.error:.2f}" if known else "")
