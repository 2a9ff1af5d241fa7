"""What was found of each claim of the paper: in a few words, and with every comparison."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from snip.common.files import damaged
from snip.experiments import EXPERIMENTS
from snip.experiments.claims import CLAIMS, Claim, Fact, verdict
from snip.experiments.claims.facts import FEW_SEEDS
from snip.experiments.kinds import Record
from snip.experiments.records.record import empty_record
from snip.experiments.records.results_file import ELSEWHERE, record_path
from snip.experiments.records.tables import markdown

Found = list[tuple[str, Record]]  # the name of the files without an ending, and the record
Judged = list[tuple[Claim, list[Fact]]]


def judged(found: Mapping[str, Found], results: Path) -> Judged:
    """Every claim with what the records say of it, trials after those of the full schedule."""
    whole = {name: _whole(found.get(name, []), name) for name in EXPERIMENTS}
    return [
        (claim, [*_facts(claim, whole, results), *_trials(claim, found, results)])
        if any(found.get(name) for name in claim.sources)
        else (claim, [])
        for claim in CLAIMS
    ]


def _whole(found: Found, name: str) -> Record:
    """The record of the whole schedule; of an experiment that was not run, one without runs."""
    whole = [record for _, record in found if record["scale"] == 1]
    return whole[0] if whole else empty_record(EXPERIMENTS[name])


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
    if claim.forced and any(not fact.missing for fact in facts):
        return claim.forced
    return verdict(facts, some=claim.some)


def claim_text(claim: Claim, facts: list[Fact]) -> list[str]:
    """A claim with its verdict, its rule, and every comparison."""
    commands = ", ".join(f"`snip reproduce {name}`" for name in claim.sources)
    said = [
        f"### {claim.title}",
        f"**{_verdict(claim, facts)}**. Rule: {claim.rule}. From {commands}.",
    ]
    if facts:
        said.append("\n".join(_line(fact) for fact in facts))
    return said


def anchor(heading: str) -> str:
    """What a link to a heading ends with."""
    return re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")


def _line(fact: Fact) -> str:
    marks = {True: "yes: ", False: "no: ", None: _open(fact)}
    return f"- {marks[fact.holds]}{fact.text}{'; of a single seed' if fact.alone else ''}."


def _open(fact: Fact) -> str:
    if fact.missing:
        return ""
    return "decides nothing: " if fact.aside else f"{FEW_SEEDS}: " if fact.few else "undecided: "


def _facts(claim: Claim, records: Mapping[str, Record], results: Path) -> list[Fact]:
    """What the records say of a claim; if that cannot be told, they are damaged."""
    try:
        return list(claim.facts(records))
    except Exception as error:  # claims go deeper into the measures than tables do
        scales = {name: records[name]["scale"] for name in claim.sources if name in records}
        paths = [record_path(results, EXPERIMENTS[name], scale) for name, scale in scales.items()]
        raise damaged(" or ".join(map(str, paths)), error, ELSEWHERE) from None
