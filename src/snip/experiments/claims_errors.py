"""Claims about test errors: what pruning costs and gains, scoring batches, initialisers."""

from __future__ import annotations

from collections.abc import Iterator

from snip.common.figures import short_percent
from snip.experiments.ablation import BASE
from snip.experiments.gap import GAP, GAP_CONV, LARGE_BATCH
from snip.experiments.judging import (
    Fact,
    Records,
    beside,
    differs_no_more,
    gains,
    gains_by_seed,
    loses_no_more,
    number,
    paper_rise,
    ranks_higher,
    rows_run,
    seed_differences,
)
from snip.experiments.kinds import Record
from snip.training import paper_schedule

EXTREME = 0.9  # sparsities from here on are looked at for the first claim
RECURRENT = ("lstm-s", "gru-s")
SCALED, BEST = "VS-X", "VS-H"


def one_shot(records: Records) -> Iterator[Fact]:
    """Both LeNets from 90% on."""
    for name, row, dense in _pruned(records, ("table1", "fig1")):
        if row["config"]["sparsity"] >= EXTREME:
            yield _against_dense(name, row, dense)
    yield from _not_run(records, ("table1", "fig1"), least=EXTREME)


def architectures(records: Records) -> Iterator[Fact]:
    """Twelve networks on CIFAR-10 and MNIST, five on Tiny-ImageNet."""
    for name, row, dense in _pruned(records, ("table2", "tableC")):
        yield _against_dense(name, row, dense)
    yield from _not_run(records, ("table2", "tableC"))


def improvements(records: Records) -> Iterator[Fact]:
    """Where the paper's pruned network is better than its dense one."""
    for name, row, dense in _pruned(records, ("table1", "table2", "tableC")):
        rise = None if dense is None else paper_rise(row, dense)
        if dense is not None and rise is not None and rise < 0:
            comparable = dense["runs"] and _alike(row, dense)
            yield Fact(_told(name, row, dense), gains(row, dense) if comparable else None)


def _pruned(
    records: Records, names: tuple[str, ...]
) -> Iterator[tuple[str, Record, Record | None]]:
    """SNIP's rows with the row of their dense network, run or not; the same runs once.

    Experiments share run folders: of two rows with a common run the one with more runs is told.
    """
    found = []
    for name in names:
        for row in filter(_is_snip, rows_run(records, name)):
            every, model = records[name]["rows"], row["config"]["model"]
            dense = next((one for one in every if _is_dense_of(one, model)), None)
            found.append((name, row, dense))
    told: set[str] = set()
    chosen = []
    for one in sorted(found, key=lambda one: -len(one[1]["runs"])):
        runs = {run["run"] for run in [*one[1]["runs"], *one[1].get("failed", ())]}
        if not runs & told:
            chosen.append(one)
        told |= runs
    yield from (one for one in found if one in chosen)


def _not_run(records: Records, names: tuple[str, ...], least: float = 0.0) -> Iterator[Fact]:
    """A fact for each of SNIP's rows of which nothing is known yet: it may turn out either way."""
    for name in names:
        known = rows_run(records, name)
        for row in filter(_is_snip, records.get(name, {"rows": []})["rows"]):
            if row not in known and row["config"]["sparsity"] >= least:
                yield Fact(f"{_point(name, row)}: not run yet", missing=True)


def _is_snip(row: Record) -> bool:
    return bool(row["config"]["method"] == "snip" and row["config"]["sparsity"])


def _point(name: str, row: Record) -> str:
    """Which network at which sparsity, of which experiment, and its length if that is its own."""
    config = row["config"]
    steps, paper = config["train"]["iterations"], paper_schedule(config["dataset"]).iterations
    length = "" if steps == paper else f", {steps:,} steps"
    return f"{config['model']} at {short_percent(config['sparsity'])} ({name}{length})"


def _is_dense_of(row: Record, model: str) -> bool:
    return bool(row["config"]["model"] == model and not row["config"]["sparsity"])


def _against_dense(name: str, row: Record, dense: Record | None) -> Fact:
    """Whether the error rises by at most what it rises in the paper, and two standard errors."""
    if dense is None or not dense["runs"] or not _alike(row, dense):
        return Fact(_told(name, row, dense))
    allowed = max(paper_rise(row, dense) or 0.0, 0.0)
    return Fact(_told(name, row, dense), loses_no_more(row, dense, allowed))


def _told(name: str, row: Record, dense: Record | None) -> str:
    about = f"{_point(name, row)}: {number(row)}{beside(row)}"
    if dense is None or not dense["runs"]:
        return f"{about}; its dense network is not run yet"
    rise = paper_rise(row, dense)
    paper = "" if rise is None else f"; from dense to pruned the paper has {rise:+.2f} points"
    if not _alike(row, dense):
        steps = [f"{one['config']['train']['iterations']:,}" for one in (row, dense)]
        paper += f"; trained in another way ({steps[0]} steps, the dense one {steps[1]}), so that "
        paper += "this decides nothing"
    return f"{about}; dense {number(dense)}{beside(dense)}{paper}"


def _alike(row: Record, dense: Record) -> bool:
    """Whether two rows are trained in the same way."""
    return bool(row["config"]["train"] == dense["config"]["train"])


def scoring_batches(records: Records) -> Iterator[Fact]:
    """The largest of figure 3 against its smallest, and of the ablation against its base."""
    rows = rows_run(records, "fig3")
    if rows:
        sizes = [_size(row) for row in records["fig3"]["rows"]]
        ends = {_size(row): row for row in rows}
        smallest, largest = ends.get(min(sizes)), ends.get(max(sizes))
        shown = "; ".join(f"{row['label']} {number(row)}{beside(row)}" for row in rows)
        if smallest is None or largest is None:
            shown += f"; of {min(sizes):,} and {max(sizes):,} one is not run yet"
            yield Fact(f"fig3: {shown}", missing=True)
        else:
            shown += f"; from the smallest to the largest {seed_differences(largest, smallest)}"
            yield Fact(f"fig3: {shown}", gains_by_seed(largest, smallest))
    for name in (GAP.name, GAP_CONV.name):
        yield from _large_batches(name, rows_run(records, name))


def _large_batches(name: str, rows: list[Record]) -> Iterator[Fact]:
    """Of an ablation: the large scoring batch against the base, at each sparsity."""
    bases = {row["config"]["sparsity"]: row for row in rows if row["label"] == BASE}
    for row in rows:
        if row["label"] != LARGE_BATCH:
            continue
        about = f"{_point(name, row)}: {LARGE_BATCH} {number(row)}"
        base = bases.get(row["config"]["sparsity"])
        if base is None:
            yield Fact(f"{about}; the base is not run yet", missing=True)
        else:
            about += f", {_size(base)} {number(base)}; {seed_differences(row, base)}"
            yield Fact(about, gains_by_seed(row, base))


def _size(row: Record) -> int:
    return int(row["config"]["score_batch_size"])


def variance(records: Records) -> Iterator[Fact]:
    """Recurrent networks: draws of one scale for all layers beside draws that are scaled."""
    for row, good, said in _unscaled(records):
        if row["config"]["model"] in RECURRENT:
            holds = None if good is None else ranks_higher(row, good)
            yield Fact(said, holds, missing=good is None)


def marginal(records: Records) -> Iterator[Fact]:
    """The same on the LeNets, where the paper calls the differences marginal."""
    for row, good, said in _unscaled(records):
        if row["config"]["model"] not in RECURRENT:
            holds = None
            if good is not None:
                holds = differs_no_more(row, good, abs(paper_rise(row, good) or 0.0))
            yield Fact(said, holds, missing=good is None)


def _unscaled(records: Records) -> Iterator[tuple[Record, Record | None, str]]:
    """The rows of draws of one scale, each with that of the scaled draw and what both have."""
    rows = _by_initialiser(records)
    for (model, label), row in rows.items():
        if label not in (SCALED, BEST):
            good = rows.get((model, SCALED))
            beside_it = f"{SCALED} is not run yet" if good is None else f"{SCALED} {number(good)}"
            yield row, good, f"{model}, {label}: {number(row)}{beside(row)}; {beside_it}"


def best_initialiser(records: Records) -> Iterator[Fact]:
    """VS-H beside the three others; None where it is too close to tell."""
    rows = _by_initialiser(records)
    for model in dict.fromkeys(model for model, _ in rows):
        found = {label: row for (one, label), row in rows.items() if one == model}
        shown = "; ".join(f"{label} {number(row)}{beside(row)}" for label, row in found.items())
        best = found.pop(BEST, None)
        if best is None or len(found) < 3:
            yield Fact(f"{model}: {shown}; not all four are run yet", missing=True)
            continue
        leads = [gains(best, row) for row in found.values()]
        trails = any(gains(row, best) for row in found.values())
        yield Fact(f"{model}: {shown}", False if trails else (True if all(leads) else None))


def _by_initialiser(records: Records) -> dict[tuple[str, str], Record]:
    rows = rows_run(records, "table3")
    return {(row["config"]["model"], row["label"]): row for row in rows}
