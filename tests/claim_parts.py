"""The paper's claims by name, and what records say of one."""

from snip.experiments.claims import CLAIMS, Claim, Fact
from snip.experiments.kinds import Record

(
    ONE_SHOT, ON_PAR, ANY, BETTER, SEEN, TASK, INVERTED, GRADIENT, BATCHES, NEAR_MEAN, LABELS,
    SPARSER, VARIANCE, MARGINAL, BEST,
) = CLAIMS  # fmt: skip


def facts_of(claim: Claim, **records: Record) -> list[Fact]:
    """What the records say, without the rows that are not run."""
    return [fact for fact in claim.facts(records) if not fact.text.endswith(": not run yet")]


def holds(claim: Claim, **records: Record) -> list[bool | None]:
    return [fact.holds for fact in facts_of(claim, **records)]
