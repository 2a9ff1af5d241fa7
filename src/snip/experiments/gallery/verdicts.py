"""What was found of each claim of the paper: in a few words, and with every comparison."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from snip.common.files import damaged
from snip.experiments import EXPERIMENTS
from snip.experiments.claims import CLAIMS, Claim, Fact, verdict
from snip.experiments.kinds import Record
from snip.experiments.records.results_file import ELSEWHERE, record_path
from snip.experiments.records.tables import markdown

Found = list[tuple[str, Record]]  # the name of the files without an ending, and the record
Judged = list[tuple[Claim, list[Fact]]]


def judged(found: Mapping[str, Found], results: Path) -> Judged:
    """Every claim with what the records say of it, trials after those of the full schedule."""
    whole = {name: one for name, some in found.items() for one in _whole(some)}
    return [
        (claim, [*_facts(claim, whole, results), *_trials(claim, found, results)])
        for claim in CLAIMS
    ]


def _whole(found: Found) -> list[Record]:
    return [record for _, record in found if record["scale"] == 1]


def _trials(claim: Claim, found: Mapping[str, Found], results: Path) -> list[Fact]:
    """What trials on a part of the schedule say of a claim: they tell something, decide nothing."""
    told = []
    for name in claim.sources:
        for _, record in (one for one in found.get(name, []) if one[1]["scale"] != 1):
            facts = _facts(claim, {name: record}, results)
            trial = f"; a trial on {record['scale']:g} of the schedule"
            told += [
                replace(fact, text=fact.text + trial, holds=None, aside=True)
                for fact in facts
                if not fact.missing
            ]
    return told


def verdict_table(claims: Judged, page: str = "") -> str:
    """A line per claim, which links to the comparisons on a page."""
    rows = [
        [f"[{claim.title}]({page}#{anchor(claim.title)})", _verdict(claim, facts)]
        for claim, facts in claims
    ]
    return markdown(["the paper's claim", "what we found"], rows)


def _verdict(claim: Claim, facts: list[Fact]) -> str:
    return verdict(facts, claim.failed, some=claim.some)


def claim_text(claim: Claim, facts: list[Fact], found: Mapping[str, Found]) -> list[str]:
    """A claim with its verdict, its rule, and every comparison."""
    commands = ", ".join(f"`snip reproduce {name}`" for name in claim.sources)
    said = [
        f"### {claim.title}",
        f"**{_verdict(claim, facts)}**. Rule: {claim.rule}. From {commands}.",
    ]
    missing = [name for name in claim.sources if not _whole(found.get(name, []))]
    if missing and facts:
        said.append(f"Not run in full yet: {', '.join(missing)}.")
    if facts:
        said.append("\n".join(_line(fact) for fact in facts))
    return said


def anchor(heading: str) -> str:
    """What a link to a heading ends with."""
    return re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")


def _line(fact: Fact) -> str:
    open_ = "" if fact.missing else "decides nothing: " if fact.aside else "undecided: "
    marks = {True: "yes: ", False: "no: ", None: open_}
    return f"- {marks[fact.holds]}{fact.text}{'; of a single seed' if fact.alone else ''}."


def _facts(claim: Claim, records: Mapping[str, Record], results: Path) -> list[Fact]:
    """What the records say of a claim; if that cannot be told, they are damaged."""
    try:
        return list(claim.facts(records))
    except Exception as error:  # claims go deeper into the measures than tables do
        scales = {name: records[name]["scale"] for name in claim.sources if name in records}
        paths = [record_path(results, EXPERIMENTS[name], scale) for name, scale in scales.items()]
        raise damaged(" or ".join(map(str, paths)), error, ELSEWHERE) from None
