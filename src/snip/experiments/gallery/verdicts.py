"""What was found of each claim of the paper: in a few words, and with every comparison."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from snip.common.files import damaged
from snip.experiments import EXPERIMENTS
from snip.experiments.claims import CLAIMS, Claim, Fact, verdict
from snip.experiments.kinds import Record
from snip.experiments.records.results_file import ELSEWHERE, record_file
from snip.experiments.records.tables import markdown

Judged = list[tuple[Claim, list[Fact]]]


def judged(records: Mapping[str, Record], results: Path) -> Judged:
    """Every claim with what the records say of it."""
    return [(claim, _facts(claim, records, results)) for claim in CLAIMS]


def verdict_table(claims: Judged, page: str = "") -> str:
    """A line per claim, which links to the comparisons on a page."""
    rows = [
        [f"[{claim.title}]({page}#{anchor(claim.title)})", verdict(facts, claim.failed)]
        for claim, facts in claims
    ]
    return markdown(["the paper's claim", "what we found"], rows)


def claim_text(claim: Claim, facts: list[Fact], records: Mapping[str, Record]) -> list[str]:
    """A claim with its verdict, its rule, and every comparison."""
    commands = ", ".join(f"`snip reproduce {name}`" for name in claim.sources)
    said = [
        f"### {claim.title}",
        f"**{verdict(facts, claim.failed)}**. Rule: {claim.rule}. From {commands}.",
    ]
    short = [name for name in claim.sources if name in records and records[name]["scale"] != 1]
    if short:
        scales = ", ".join(f"{name} at {records[name]['scale']}" for name in short)
        said.append(f"Not of the full schedule: {scales} of it.")
    missing = [name for name in claim.sources if name not in records]
    if missing and facts:
        said.append(f"Not run yet: {', '.join(missing)}.")
    if facts:
        said.append("\n".join(_line(fact) for fact in facts))
    return said


def anchor(heading: str) -> str:
    """What a link to a heading ends with."""
    return re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")


def _line(fact: Fact) -> str:
    marks = {True: "yes: ", False: "no: ", None: "" if fact.missing else "undecided: "}
    return f"- {marks[fact.holds]}{fact.text}{'; of a single seed' if fact.alone else ''}."


def _facts(claim: Claim, records: Mapping[str, Record], results: Path) -> list[Fact]:
    """What the records say of a claim; if that cannot be told, they are damaged."""
    try:
        return list(claim.facts(records))
    except Exception as error:  # claims go deeper into the measures than tables do
        scales = {name: records[name]["scale"] for name in claim.sources if name in records}
        paths = [record_file(results, EXPERIMENTS[name], scale) for name, scale in scales.items()]
        raise damaged(" or ".join(map(str, paths)), error, ELSEWHERE) from None
