"""The paper's claims, and what our results say of each: numbers of the records, stated rules."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from snip.experiments.architectures import DENSE
from snip.experiments.class_maps import MAGNITUDE, MEAN, PLAIN, SETS
from snip.experiments.kinds import Record
from snip.experiments.made import MEASURED
from snip.experiments.random_labels import NAMES
from snip.experiments.summary import AGREES, DEVIATIONS, HIGHER, LOWER

Records = Mapping[str, Record]  # by the names of experiments, of those that were run
EXTREME = 0.9  # sparsities from here on are looked at for the first claim
READ_BACK = 0.9  # share of the maps that a class must be read back from; by chance it is 0.1
HALF, FITTED = 0.5, 0.05  # training errors: half the labels are learnt, nearly all are
AGAINST = {AGREES: "agrees", HIGHER: "ours is higher", LOWER: "ours is lower"}
RECURRENT = ("lstm-s", "gru-s")


@dataclass(frozen=True)
class Fact:
    """One finding, and whether it bears the claim out; None if it cannot tell."""

    text: str
    holds: bool | None = None


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, the rule that decides whether it holds, and where to look."""

    title: str
    rule: str
    sources: tuple[str, ...]
    facts: Callable[[Records], Iterator[Fact]]


def verdict(facts: list[Fact]) -> str:
    """In a few words, what the facts say together."""
    judged = [fact.holds for fact in facts if fact.holds is not None]
    if not facts:
        return "not run yet"
    if not judged:
        return "open: too little was run to tell"
    if all(judged):
        return f"holds here ({len(judged)} of {len(judged)} comparisons)"
    return f"holds in {sum(judged)} of {len(judged)} comparisons" if any(judged) else "fails here"


def number(row: Record) -> str:
    """A row's error over its seeds."""
    found, seeds = row["selected"], len(row["runs"])
    spread = "" if found["std"] is None else f" ± {found['std']:.2f}"
    return f"{found['mean']:.2f}{spread}% ({seeds} seed{'s' * (seeds != 1)})"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.4g}%"


def _beside(row: Record) -> str:
    """The paper's number, and how ours stands to it."""
    if not row["paper"]:
        return ""
    against = row["selected"]["against"]
    return f", the paper {row['paper']}%" + (f" ({AGAINST[against]})" if against else "")


def _rows(records: Records, name: str) -> list[Record]:
    return [row for row in records.get(name, {"rows": []})["rows"] if row["runs"]]


def _loses_nothing(row: Record, dense: Record, more: float = 0.0) -> bool | None:
    """Whether the error rises by no more than two standard deviations, and `more` points."""
    ours, theirs = row["selected"], dense["selected"]
    if ours["std"] is None or theirs["std"] is None:
        return None
    allowed = more + DEVIATIONS * math.hypot(ours["std"], theirs["std"])
    return bool(ours["mean"] - theirs["mean"] <= allowed)


def _one_shot(records: Records) -> Iterator[Fact]:
    for name in ("table1", "fig1"):
        rows = _rows(records, name)
        for row in rows:
            config = row["config"]
            if config["sparsity"] < EXTREME or config["method"] != "snip":
                continue
            about = f"{config['model']} at {_percent(config['sparsity'])} ({name}): {number(row)}"
            about += _beside(row)
            dense = [one for one in rows if _is_dense_of(one, config["model"])]
            if not dense:
                yield Fact(f"{about}; its dense network is not run yet")
                continue
            holds = _loses_nothing(row, dense[0])
            yield Fact(f"{about}; dense {number(dense[0])}", holds)


def _is_dense_of(row: Record, model: str) -> bool:
    return bool(row["config"]["model"] == model and not row["config"]["sparsity"])


def _architectures(records: Records) -> Iterator[Fact]:
    for name in ("table2", "tableC"):
        rows = _rows(records, name)
        for row in rows:
            model = row["config"]["model"]
            if row["label"] == DENSE:
                continue
            dense = [one for one in rows if _is_dense_of(one, model)]
            about = f"{model} at {_percent(row['config']['sparsity'])} ({name}): {number(row)}"
            if not dense:
                yield Fact(f"{about}; its dense network is not run yet")
                continue
            paper = float(row["paper"]) - float(dense[0]["paper"])
            holds = _loses_nothing(row, dense[0], max(paper, 0.0))
            yield Fact(f"{about}; dense {number(dense[0])}; the paper {paper:+.2f} points", holds)


def _looked_at(records: Records) -> Iterator[Fact]:
    for name in ("fig2", "figA1", "figA2"):
        measured: Record = records.get(name, {}).get(MEASURED, {})
        for dataset in SETS if measured else ():
            found = measured[dataset]["measures"][-1]
            for kind in measured["shown"]:
                share = found[f"{kind}: class read back by {MAGNITUDE}"]
                by_mean = found[f"{kind}: class read back by {MEAN}"]
                data = dataset if kind == PLAIN else f"{dataset} inverted"
                both = found["correlation of plain and inverted"]
                yield Fact(
                    f"{data}, {measured['method']} at {_percent(found['sparsity'])} ({name}): the "
                    f"class is read back from {_percent(share)} of the maps by how far its mean "
                    f"image is from the mean pixel, from {_percent(by_mean)} by the mean image "
                    f"itself; maps of plain and inverted data correlate by {both:.3f}",
                    share >= READ_BACK if measured["method"] == "snip" else None,
                )


def _scoring_batches(records: Records) -> Iterator[Fact]:
    rows = _rows(records, "fig3")
    if len(rows) == 1:
        yield Fact(f"{rows[0]['label']} (fig3): {number(rows[0])}; no other size is run yet")
    elif rows:
        shown = "; ".join(f"{row['label']} {number(row)}{_beside(row)}" for row in rows)
        yield Fact(f"fig3: {shown}", _falls(rows[0], rows[-1]))
    gap = {(row["label"], row["config"]["sparsity"]): row for row in _rows(records, "gap")}
    for (label, sparsity), row in gap.items():
        base = gap.get(("base", sparsity))
        if label == "scoring batch 10,000" and base is not None:
            about = f"{_percent(sparsity)} (gap): {label} {number(row)}, 100 {number(base)}"
            yield Fact(about, _falls(base, row))


def _falls(before: Record, after: Record) -> bool | None:
    """Whether the mean falls by more than two standard errors."""
    if before["selected"]["std"] is None or after["selected"]["std"] is None:
        return None
    squares = (one["selected"]["std"] ** 2 / len(one["runs"]) for one in (before, after))
    fall = before["selected"]["mean"] - after["selected"]["mean"]
    return bool(fall > DEVIATIONS * math.sqrt(sum(squares)))


def _random_labels(records: Records) -> Iterator[Fact]:
    found = {row["label"]: _training_error(row) for row in _rows(records, "fig4")}
    if found:
        dense, pruned, true = (found.get(NAMES[name]) for name in ("dense", "pruned", "true"))
        told = "; ".join(f"{label}: {_percent(error)}" for label, error in found.items())
        holds = None
        if dense is not None and pruned is not None and true is not None:
            holds = dense < HALF < pruned and true < FITTED
        yield Fact(f"training error at the end (fig4): {told}", holds)
    rows = _rows(records, "figB")
    if rows:
        told = "; ".join(f"{row['label']} {_percent(_training_error(row))}" for row in rows)
        yield Fact(f"training error at the end over the sparsity (figB): {told}")


def _training_error(row: Record) -> float:
    return statistics.mean(run["curve"]["train_error"][-1] for run in row["runs"])


def _initialisers(records: Records) -> Iterator[Fact]:
    rows = {(row["config"]["model"], row["label"]): row for row in _rows(records, "table3")}
    for (model, label), row in rows.items():
        good = rows.get((model, "VS-X"))
        about = f"{model}, {label}: {number(row)}{_beside(row)}"
        if label not in ("RN", "TN") or good is None:
            yield Fact(about)
            continue
        loses_nothing = _loses_nothing(row, good) if model in RECURRENT else None
        holds = None if loses_nothing is None else not loses_nothing
        yield Fact(f"{about}; VS-X {number(good)}", holds)


CLAIMS = (
    Claim(
        "One shot before training loses nothing up to extreme sparsity",
        "the pruned network's error is above the dense one's by at most two standard deviations "
        f"(of both together), from {_percent(EXTREME)} on",
        ("table1", "fig1"),
        _one_shot,
    ),
    Claim(
        "It works on any architecture",
        "the error rises by at most what it rises in the paper and two standard deviations",
        ("table2", "tableC"),
        _architectures,
    ),
    Claim(
        "What survives can be looked at",
        f"the class is read back from at least {_percent(READ_BACK)} of the maps of SNIP at the "
        "highest sparsity, as the class whose image correlates best with the map; by chance from "
        "10%. Maps of dL/dw, which is not SNIP, are shown beside and decide nothing",
        ("fig2", "figA1", "figA2"),
        _looked_at,
    ),
    Claim(
        "Larger scoring batches help",
        "the mean error of the largest batch is below that of the smallest by more than two "
        "standard errors",
        ("fig3", "gap"),
        _scoring_batches,
    ),
    Claim(
        "Pruned networks do not memorise random labels",
        f"the dense network's training error on random labels ends below {_percent(HALF)} and the "
        f"pruned one's above, while on true labels the pruned one's ends below {_percent(FITTED)}",
        ("fig4", "figB"),
        _random_labels,
    ),
    Claim(
        "Initialisation must scale the variance",
        "on the recurrent networks, scores of RN and TN draws lead to an error above that of VS-X "
        "by more than two standard deviations; in the paper the two LeNets do not care",
        ("table3",),
        _initialisers,
    ),
)
