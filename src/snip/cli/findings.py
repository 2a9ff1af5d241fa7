"""What `snip inspect` finds in a file or a folder, for people and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from snip.cli.reading import State, Weights, network_of
from snip.common.errors import FileError, InputError
from snip.common.files import exists
from snip.common.text import percent
from snip.masks import Masks
from snip.reports.report import Report, report
from snip.runs import RunResult, chance_note
from snip.runs.folder import CONFIG, FINISHED, RESULT, STOPPED, SUMS, read_config
from snip.runs.listing import Listed, listed
from snip.runs.sums import Changes, changes
from snip.training.journal import MASKS, METRICS
from snip.training.metrics import Metrics, read_metrics

# Buffers of normalisation layers, which are no connections.
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
# Fields of a provenance that are not shown to people: they are for machines.
HIDDEN = ("uses", "left_out", "seeds", "versions")


# What the masks of a run's folder add to what its other files say.
FOR_RUNS = ("sparsity", "kept", "report")


class Parameter(NamedTuple):
    """How much is left of one parameter."""

    name: str
    kept: int
    total: int

    @property
    def density(self) -> float:
        """The fraction kept."""
        return self.kept / self.total if self.total else 0.0


@dataclass(frozen=True)
class Finding:
    """The content of a file or a folder."""

    kind: str
    path: Path
    shown: dict[str, object]  # for people
    data: dict[str, Any]  # for machines
    parameters: tuple[Parameter, ...] = ()
    masks: Masks | None = None
    report: Report | None = field(default=None, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values for JSON."""
        return {
            "kind": self.kind,
            "path": str(self.path),
            **self.data,
            "parameters": [p._asdict() | {"density": p.density} for p in self.parameters],
            "report": None if self.report is None else self.report.to_dict(),
        }


def of_masks(path: Path, masks: Masks, model: str | None, dataset: str | None) -> Finding:
    """What masks keep, where they come from, and the report if the network is known."""
    provenance = masks.provenance.to_dict()
    notes = {key: value for key, value in provenance.items() if key not in HIDDEN}
    found = _report(masks, model, dataset)
    own = masks.provenance.model
    if found is None and own is not None and ":" in own:
        # It is not imported by itself: a file must not make us run code.
        notes["report"] = f"name your network for units, FLOPs and paths: --model {own}"
    return Finding(
        "masks",
        path,
        {**_counts(masks), **notes},
        {"sparsity": masks.sparsity, "kept": masks.kept, "total": masks.total}
        | {"provenance": provenance},
        tuple(Parameter(name, int(mask.sum()), mask.numel()) for name, mask in masks.items()),
        masks,
        found,
    )


def of_weights(path: Path, weights: Weights) -> Finding:
    """How many weights of each parameter are not zero."""
    state = _connections(weights.state)
    if not state:
        raise FileError(f"{path} holds no floating-point weights to count.")
    masks = Masks({name: value != 0 for name, value in state.items()})
    found = of_masks(path, masks, None, None)
    iteration = {} if weights.iteration is None else {"iteration": weights.iteration}
    data = {"sparsity": masks.sparsity, "kept": masks.kept, "total": masks.total, **iteration}
    return Finding(
        weights.kind, path, {**_counts(masks), **iteration}, data, found.parameters, masks
    )


def of_folder(folder: Path, model: str | None, dataset: str | None) -> Finding:
    """A run: its result, or how far it is, and its masks."""
    if not exists(folder / CONFIG):
        raise FileError(f"{folder} is no run folder: it has no {CONFIG}.")
    changed = changes(folder) if exists(folder / RESULT) else None
    try:
        run = _run(folder, changed)
        if not exists(folder / MASKS):
            return run
        found = of_masks(folder / MASKS, Masks.load(folder / MASKS), model, dataset)
    except FileError as error:
        if changed is None or not changed.altered:
            raise
        raise FileError(f"{error} Of its files are {changed}.") from error
    return replace(
        run,
        shown=run.shown | {key: found.shown[key] for key in FOR_RUNS if key in found.shown},
        data=run.data | {"masks": dict(found.data)},
        parameters=found.parameters,
        masks=found.masks,
        report=found.report,
    )


def _run(folder: Path, changed: Changes | None) -> Finding:
    """What a run's folder says beside its masks."""
    config = read_config(folder)
    result = RunResult.read(folder, verify=False) if exists(folder / RESULT) else None
    under_way = None if result is not None else listed(folder)
    shown: dict[str, object] = {
        "model": config.model,
        "data set": config.dataset,
        "protocol": config.protocol,
        "seed": config.seed,
        "state": FINISHED if under_way is None else _under_way(under_way),
        # A run's masks, if they are there, say more; they may be deleted, or not made yet.
        "sparsity": percent(config.sparsity if result is None else result.sparsity),
    }
    shown |= {} if result is None else _outcome(result, changed)
    history = _history(folder) if under_way is None else under_way.history
    data: dict[str, Any] = {
        "finished": result is not None,
        "config": config.to_dict(),
        "result": None if result is None else result.to_dict(),
        "phase": under_way.phase if under_way is not None else "",  # "" is the run's own training
        "last_evaluation": history[-1].to_dict() if history else None,  # of that training
        "files": None if changed is None else changed._asdict(),
    }
    return Finding("run", folder, shown, data)


def _under_way(run: Listed) -> str:
    """How far a run has come, and what a stopped one needs."""
    more = "; `snip run` with the same flags goes on" if run.state == STOPPED else ""
    return f"{run.progress}{more}"


def _history(folder: Path) -> Sequence[Metrics]:
    """The evaluations of a finished run; they may be deleted."""
    return read_metrics(folder / METRICS) if exists(folder / METRICS) else ()


def _outcome(result: RunResult, changed: Changes | None) -> dict[str, object]:
    """What a finished run came to, and whether its files are as it left them."""
    note = chance_note(result)
    return {
        "test error": percent(result.test_error),
        "seconds": f"{result.seconds:.1f}",
        "engine": result.engine_note,
        **({} if note is None else {"note": note}),
        "files": f"not known: there is no {SUMS}" if changed is None else str(changed),
    }


def _report(masks: Masks, model: str | None, dataset: str | None) -> Report | None:
    """The full report, if the network is named and the masks are indeed its own."""
    network = network_of(masks, model, dataset)
    try:
        if network is None:
            return None
        masks.apply(network)  # a fresh network: only its structure is used
        return report(network, masks)
    except InputError:
        if model is not None:
            raise
        return None  # the file names a network that the masks do not fit


def _counts(masks: Masks | None) -> dict[str, object]:
    if masks is None:
        return {}
    return {"sparsity": percent(masks.sparsity), "kept": f"{masks.kept:,} of {masks.total:,}"}


def _connections(state: State) -> State:
    return {
        name: value
        for name, value in state.items()
        if torch.is_floating_point(value) and not name.endswith(STATISTICS)
    }
