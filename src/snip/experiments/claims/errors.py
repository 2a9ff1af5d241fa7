"""Claims about test errors: what pruning costs and gains, rivals, initialisers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from snip.common.text import short_percent
from snip.experiments.claims.facts import (
    Fact,
    Records,
    beside,
    is_run,
    network_at,
    number,
    rows_of,
)
from snip.experiments.kinds import Record
from snip.experiments.records.comparison import (
    differs_no_more,
    diverged,
    gains,
    has_few_seeds,
    is_dense_of,
    is_full_schedule,
    loses_no_more,
    paper_rise,
    ranks_higher,
)
from snip.experiments.records.summary import HIGHER
from snip.training import paper_schedule

EXTREME = 0.9  # sparsities from here on are looked at for the first claim
RECURRENT = ("lstm-s", "gru-s")
UNSCALED, SCALED, BEST = ("RN", "TN"), "VS-X", "VS-H"


def one_shot(records: Records) -> Iterator[Fact]:
    """Both LeNets from 90% on."""
    for name, row, dense in _pruned(records, ("table1", "fig1"), _is_extreme):
        yield _against_dense(name, row, dense)


def architectures(records: Records) -> Iterator[Fact]:
    """Twelve networks on CIFAR-10 and MNIST, five on Tiny-ImageNet."""
    for name, row, dense in _pruned(records, ("table2", "tableC")):
        yield _against_dense(name, row, dense)


def improvements(records: Records) -> Iterator[Fact]:
    """Where the paper's pruned network is better than its dense one."""
    names = ("table1", "fig1", "table2", "tableC")
    for name, row, dense in _pruned(records, names, _paper_gains):
        yield _fact(name, row, dense, gains)


def _is_extreme(row: Record, _dense: Record | None) -> bool:
    return bool(row["config"]["sparsity"] >= EXTREME)


def _paper_gains(row: Record, dense: Record | None) -> bool:
    return dense is not None and (paper_rise(row, dense) or 0.0) < 0


def _pruned(
    records: Records,
    names: tuple[str, ...],
    wanted: Callable[[Record, Record | None], bool] = lambda _row, _dense: True,
) -> Iterator[tuple[str, Record, Record | None]]:
    """SNIP's rows with the row of their dense network, run or not; the same configuration once.

    Experiments share runs: of two rows of one configuration the one with more runs is told. A
    row of which nothing is known yet comes after all others: it may turn out either way.
    """
    found = []
    for name in names:
        for row in filter(_is_snip, rows_of(records, name)):
            model = row["config"]["model"]
            every = (one for one in rows_of(records, name) if is_dense_of(one, model))
            found.append((name, row, next(every, None)))
    told: list[Record] = []
    chosen = []
    for one in sorted(found, key=lambda one: -len(one[1]["runs"])):
        if one[1]["config"] not in told:
            chosen.append(one)
        told.append(one[1]["config"])
    found.sort(key=lambda one: not is_run(one[1]))
    yield from (one for one in found if one in chosen and wanted(one[1], one[2]))


def _is_snip(row: Record) -> bool:
    return bool(row["config"]["method"] == "snip" and row["config"]["sparsity"])


def _point(name: str, row: Record) -> str:
    """Which network at which sparsity, of which experiment, and its length if that is its own."""
    config = row["config"]
    steps, paper = config["train"]["iterations"], paper_schedule(config["dataset"]).iterations
    length = "" if steps == paper else f", {steps:,} steps"
    return f"{network_at(row)} ({name}{length})"


def _against_dense(name: str, row: Record, dense: Record | None) -> Fact:
    """Whether the error rises by at most what it rises in the paper."""
    return _fact(
        name,
        row,
        dense,
        lambda row, dense: loses_no_more(row, dense, max(paper_rise(row, dense) or 0.0, 0.0)),
    )


def _fact(
    name: str, row: Record, dense: Record | None, rule: Callable[[Record, Record], bool | None]
) -> Fact:
    """A pruned row beside its dense one, and what the rule says of them.

    Two that are not trained alike, or not on the full schedule, are told, no more.
    """
    told = _told(name, row, dense)
    if dense is None or not (is_run(row) and is_run(dense)):
        return Fact(told, missing=True)
    if not (_alike(row, dense) and is_full_schedule(row["config"])):
        return Fact(told, aside=True)
    return Fact(told, rule(row, dense) if dense["runs"] else None, few=has_few_seeds(row, dense))


def _told(name: str, row: Record, dense: Record | None) -> str:
    if not is_run(row):
        return f"{_point(name, row)}: not run yet"
    about = f"{_point(name, row)}: {number(row)}{beside(row)}"
    if dense is None or not dense["runs"]:
        lost = dense is not None and diverged(dense)
        return f"{about}; its dense network {'diverged' if lost else 'is not run yet'}"
    rise = paper_rise(row, dense)
    paper = "" if rise is None else f"; from dense to pruned the paper has {rise:+.2f} points"
    if not _alike(row, dense):
        steps = [f"{one['config']['train']['iterations']:,}" for one in (row, dense)]
        paper += f"; trained in another way ({steps[0]} steps, the dense one {steps[1]})"
    return f"{about}; dense {number(dense)}{beside(dense)}{paper}"


def _alike(row: Record, dense: Record) -> bool:
    """Whether two rows are trained in the same way."""
    return bool(row["config"]["train"] == dense["config"]["train"])


def on_par(records: Records) -> Iterator[Fact]:
    """SNIP beside each method that prunes a trained network, where their sparsities are nearest."""
    rows = [row for row in rows_of(records, "table1") if row["config"]["sparsity"]]
    for rival in (row for row in rows if not _is_snip(row)):
        own = min((row for row in rows if _is_snip(row)), key=partial(_apart, rival))
        about = f"{network_at(rival)}: {rival['label']}"
        if not (is_run(rival) and is_run(own)):
            yield Fact(f"{about} or SNIP at {_sparsity(own)} is not run yet", missing=True)
            continue
        beside_it = f"SNIP at {_sparsity(own)} {number(own)}{beside(own)}"
        holds = loses_no_more(own, rival, max(paper_rise(own, rival) or 0.0, 0.0))
        told = f"{about} {number(rival)}{beside(rival)}; {beside_it}"
        if rival["selected"] and rival["selected"]["against"] == HIGHER:
            yield Fact(f"{told}; here the rival misses its own number", aside=True)
        else:
            yield Fact(told, holds, few=has_few_seeds(own, rival))


def _apart(row: Record, other: Record) -> tuple[bool, float]:
    """How far two rows are from each other: another network first, then the sparsity."""
    one, two = row["config"], other["config"]
    return one["model"] != two["model"], abs(one["sparsity"] - two["sparsity"])


def _sparsity(row: Record) -> str:
    return short_percent(row["config"]["sparsity"])


def variance(records: Records) -> Iterator[Fact]:
    """Recurrent networks: draws of one scale for all layers beside draws that are scaled."""
    for row, good in _unscaled(records):
        if row["config"]["model"] in RECURRENT:
            yield _beside_scaled(row, good, ranks_higher)


def marginal(records: Records) -> Iterator[Fact]:
    """The same on the LeNets, where the paper calls the differences marginal."""
    for row, good in _unscaled(records):
        if row["config"]["model"] not in RECURRENT:
            rise = abs(paper_rise(row, good) or 0.0)
            yield _beside_scaled(row, good, partial(differs_no_more, allowed=rise))


def _unscaled(records: Records) -> Iterator[tuple[Record, Record]]:
    """The rows of draws of one scale, each with that of the scaled draw."""
    for rows in _by_network(records).values():
        yield from ((row, rows[SCALED]) for label, row in rows.items() if label in UNSCALED)


def _beside_scaled(
    row: Record, good: Record, rule: Callable[[Record, Record], bool | None]
) -> Fact:
    """A draw of one scale beside the scaled one, and what the rule says of them."""
    if not (is_run(row) and is_run(good)):
        return Fact(_drawn(row, good), missing=True)
    return Fact(_drawn(row, good), rule(row, good), few=has_few_seeds(row, good))


def _drawn(row: Record, good: Record) -> str:
    about = f"{row['config']['model']}, {row['label']}:"
    if not is_run(row):
        return f"{about} not run yet"
    beside_it = f"{SCALED} {number(good) if is_run(good) else 'is not run yet'}"
    return f"{about} {number(row)}{beside(row)}; {beside_it}"


def best_initialiser(records: Records) -> Iterator[Fact]:
    """VS-H beside the three others; None where it is too close to tell."""
    for model, rows in _by_network(records).items():
        known = {label: row for label, row in rows.items() if is_run(row)}
        shown = [f"{label} {number(row)}{beside(row)}" for label, row in known.items()]
        if len(known) < len(rows):
            lacking = "not all four are run yet" if known else "not run yet"
            yield Fact(f"{model}: {'; '.join([*shown, lacking])}", missing=True)
            continue
        best = rows.pop(BEST)
        leads = [gains(best, row) for row in rows.values()]
        trails = any(gains(row, best) for row in rows.values())
        holds, few = False if trails else all(leads) or None, has_few_seeds(best, *rows.values())
        yield Fact(f"{model}: {'; '.join(shown)}", holds, few=few)


def _by_network(records: Records) -> dict[str, dict[str, Record]]:
    """The rows of table 3 by their networks and initialisers."""
    found: dict[str, dict[str, Record]] = {}
    for row in rows_of(records, "table3"):
        found.setdefault(row["config"]["model"], {})[row["label"]] = row
    return found
