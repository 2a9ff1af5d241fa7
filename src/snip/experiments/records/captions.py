"""What is said beside a table or a figure: what was run, by which code, and what is missing."""

from __future__ import annotations

from collections import Counter

from snip.common.text import counted
from snip.experiments.kinds import DATA_NOTES, Record
from snip.experiments.records.comparison import diverged, is_full_schedule
from snip.experiments.records.parts import MEASURED, TIMED, machine_in_words, origin
from snip.experiments.records.summary import LEGEND
from snip.methods import training_method
from snip.training import paper_schedule

MOST_NAMES = 3  # of networks that are named one by one


def captions(record: Record) -> list[str]:
    """The sentences below a table."""
    said = [what_was_run(record)]
    if record["scale"] == 1 and any(row["paper"] for row in record["rows"]):
        said.append(f"{LEGEND}.")
    notes = record["notes"]
    if notes and record["scale"] != 1:
        said.append("Lengths in the notes are of the full schedule.")
    said += [f"{note}." for note in notes]
    parts = ((MEASURED, "Measures"), (TIMED, "Times"))
    said += [f"{name} are {origin(record, part)}." for part, name in parts if part in record]
    said += [*_codes(record), *_machines(record)]
    found = {run["dataset_note"] for row in record["rows"] for run in row["runs"]} - {""}
    found |= {*record.get(MEASURED, {}).get(DATA_NOTES, ())}
    said += [f"Data: {note}." for note in sorted(found)]
    return said


def command_of(record: Record) -> str:
    """The command that makes all of a record, and the last one if that was another."""
    scale = "" if record["scale"] == 1 else f" --scale {record['scale']}"
    whole = f"snip reproduce {record['experiment']}{scale}"
    said = f"`{whole}`"
    if record["command"] != whole:
        said += f" (the last one was `{record['command']}`)"
    lost = sum(diverged(row) for row in record["rows"])  # which --missing does not try again
    if record["done"] + lost < record["asked"]:
        said += f"; `{whole} --missing` does what is not here yet"
    return said


def what_was_run(record: Record) -> str:
    """A sentence on the part of the schedule and of the runs that the numbers come from."""
    if not record["rows"]:
        seeds = record.get(MEASURED, {}).get("seeds")
        draws = "" if seeds is None else f" with {counted(seeds, 'seed')}"
        return f"Scored{draws}, nothing was trained."
    missing = [row for row in record["rows"] if not row["runs"] and not row.get("failed")]
    out = f"; {len(missing)} of {len(record['rows'])} rows are not run yet" if missing else ""
    out += f"; {counted(record['failed'], 'run')} failed" if record.get("failed") else ""
    return f"Trained for {_length(record)}: {record['done']} of {record['asked']} runs{out}."


def schedule_in_words(record: Record) -> str:
    """Whether the rows that were run have the full schedule, a part of it, or another."""
    if not record["rows"]:
        return "nothing trained"
    if record["scale"] != 1:
        return f"{record['scale']} of the full"
    rows = _rows_run(record)
    same = sum(is_full_schedule(row["config"]) for row in rows)
    return "full" if same == len(rows) else "partly full" if same else "another"


def _rows_run(record: Record) -> list[Record]:
    """The rows that were run; if none was, all of them."""
    return [row for row in record["rows"] if row["runs"]] or record["rows"]


def _length(record: Record) -> str:
    """How long the trainings are beside the full schedule, of the rows that were run."""
    rows = _rows_run(record)
    whole = all(is_full_schedule(row["config"]) and not _trains_on(row) for row in rows)
    once, more = ([r for r in rows if _trains_on(r) == trains] for trains in (False, True))
    parts = [f"{_steps(some)}{_other_rates(some)}" if some else "" for some in (once, more)]
    parts[1] += " before methods that prune a trained network, and train on" if more else ""
    told = "; ".join(filter(None, parts))
    if record["scale"] != 1:
        return f"{record['scale']} of the full schedule" + ("" if whole else f" ({told})")
    return "the full schedule" if whole else told


def _trains_on(row: Record) -> bool:
    """Whether a row's method prunes a trained network: the steps of its schedule are the first."""
    config = row["config"]
    return bool(config["sparsity"]) and training_method(config.get("method")) is not None


def _steps(rows: list[Record]) -> str:
    """The steps of the rows' schedules, by their networks."""
    steps: dict[tuple[str, int], set[int]] = {}  # of a network, beside the full schedule's
    for config in (row["config"] for row in rows):
        module, _, name = config["model"].rpartition(":")
        # What is no network of the paper's has no schedule to be held against.
        place = name, 0 if module else paper_schedule(config["dataset"]).iterations
        steps.setdefault(place, set()).add(config["train"]["iterations"])
    networks: dict[tuple[tuple[int, ...], int], list[str]] = {}  # that have these steps
    for (model, paper), counts in steps.items():
        networks.setdefault((tuple(sorted(counts)), paper), []).append(model)
    return "; ".join(_of(names, counts, paper) for (counts, paper), names in networks.items())


def _other_rates(rows: list[Record]) -> str:
    """That rows which are trained by SGD have another learning rate than the paper's, if any do."""
    rates = set()
    for row in rows:
        train, paper = row["config"]["train"], paper_schedule(row["config"]["dataset"])
        if train.get("optimizer") == paper.optimizer:  # Adam's rate is the paper's
            rates.add((train.get("lr"), paper.lr))
    if all(ours == theirs for ours, theirs in rates):
        return ""
    if len(rates) > 1:
        return ", not all at the paper's rate"
    ((ours, theirs),) = rates
    return f", all at the rate {ours:g} (the paper's is {theirs:g})"


def _of(networks: list[str], counts: tuple[int, ...], paper: int) -> str:
    """How many steps some networks are trained for."""
    names = ", ".join(networks) if len(networks) <= MOST_NAMES else f"{len(networks)} networks"
    if counts == (paper,):
        return f"all {paper:,} steps ({names})"
    beside = f"; the full schedule has {paper:,}" if paper else ""
    return f"{' or '.join(f'{n:,}' for n in counts)} steps ({names}{beside})"


def _codes(record: Record) -> list[str]:
    """A sentence on the commits that the runs are of."""
    runs = {run["run"]: run.get("commit", "") for row in record["rows"] for run in row["runs"]}
    counts = Counter(runs.values())
    unknown = counts.pop("", 0)
    parts = [f"{count} of commit {name}" for name, count in sorted(counts.items())]
    parts += [f"{unknown} of an older or installed version that noted none"] if unknown else []
    return [f"Runs by the code that ended them: {', '.join(parts)}."] if parts else []


def _machines(record: Record) -> list[str]:
    """A sentence on the machines that the runs were done on: times of two do not compare."""
    runs = {run["run"]: run["machine"] for row in record["rows"] for run in row["runs"]}
    counts = Counter(map(machine_in_words, runs.values()))
    if len(counts) < 2:
        return [f"Machine: {name}." for name in counts]
    told = [f"{name} ({counted(n, 'run')})" for name, n in sorted(counts.items())]
    return [f"Machines: {'; '.join(told)}."]
