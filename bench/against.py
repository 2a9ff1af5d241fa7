"""Time this checkout against a commit: both take turns in one run, so that the machine is the same.

    python bench/against.py main                     # three networks: ten minutes
    python bench/against.py main --case vgg-11-bn    # prune 129M weights: five minutes
    python bench/against.py HEAD~1 --quick           # does it work at all: no time for good timings
    python bench/against.py main --out results/against.json

The commit is written into a temporary folder, where its native library is built. A turn is a new
process, which reports the best of several rounds: prune, a training step of the masked network in
dense torch, one of the accelerated network, and inference. Ratios are the time of this checkout
over that of the commit: below 1 this one is faster. "best" compares the fastest turns, "median" is
the median over pairs of turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from against_turn import CASES
from checkouts import HERE, build, commit_of, export, resolved, seeing
from record import surroundings

from snip.common import timing
from snip.common.files import write_json

ROOT = HERE.parent
LARGE = "vgg-11-bn"  # only if asked for
TURNS, ROUNDS, SECONDS = 5, 5, 1.0
Turn = dict[str, float]  # best seconds of each work


@dataclass(frozen=True)
class Effort:
    """How long is measured: turns of each version, and rounds or seconds of each work in a turn."""

    turns: int
    rounds: int
    seconds: float


def turn(checkout: Path, case: str, effort: Effort) -> Turn:
    """One turn of a checkout; RuntimeError with the last line if its process fails."""
    words = [case, str(effort.seconds), str(effort.rounds), str(timing.__file__)]
    command = [sys.executable, str(HERE / "against_turn.py"), *words]
    done = subprocess.run(
        command, env=seeing(checkout), capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise RuntimeError(f"{case} failed with {checkout}: {said[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def rows_of(case: str, this: Sequence[Turn], other: Sequence[Turn]) -> list[dict[str, Any]]:
    """The ratios of each work that both versions did, from turns in the order in which they ran."""
    rows = []
    for work in (work for work in this[0] if work in other[0]):
        ours, theirs = [t[work] for t in this], [t[work] for t in other]
        pairs = [a / b for a, b in zip(ours, theirs, strict=True)]
        rows.append(
            {
                "case": case,
                "work": work,
                "best": min(ours) / min(theirs),
                "median": statistics.median(pairs),
                "seconds": min(ours),
                "seconds_of_commit": min(theirs),
                "ratios": pairs,
            }
        )
    return rows


def shown(row: dict[str, Any]) -> str:
    spread = f"{min(row['ratios']):.2f} to {max(row['ratios']):.2f}"
    return (
        f"{row['case']:14} {row['work']:20} {row['best']:8.3f} {row['median']:8.3f}   {spread:14}"
        f" {row['seconds'] * 1e3:10.3f} {row['seconds_of_commit'] * 1e3:10.3f}"
    )


def measured(case: str, this: Path, other: Path, effort: Effort) -> list[dict[str, Any]]:
    turns: dict[Path, list[Turn]] = defaultdict(list)
    for _ in range(effort.turns):
        for checkout in (this, other):
            turns[checkout].append(turn(checkout, case, effort))
    return rows_of(case, turns[this], turns[other])


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commit", help="what to compare with: a commit, a branch, a tag")
    parser.add_argument("--case", nargs="*", choices=CASES, help=f"by default all but {LARGE}")
    parser.add_argument("--turns", type=int, default=TURNS, help="of each version")
    parser.add_argument("--quick", action="store_true", help="one round in each of two turns")
    parser.add_argument("--out", type=Path, help="a JSON file for the rows")
    options = parser.parse_args(given)
    try:
        options.commit = resolved(options.commit, ROOT)
    except ValueError as error:
        parser.error(f"{error}: give a commit, a branch or a tag")
    return options


def main(given: Sequence[str] | None = None) -> None:
    options = arguments(given)
    effort = Effort(2, 1, 0.0) if options.quick else Effort(options.turns, ROUNDS, SECONDS)
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder)
        export(options.commit, ROOT, other)
        for checkout in (ROOT, other):
            if build(checkout):
                sys.exit(f"The native library of {checkout} could not be built.")
        around, commits = surroundings(), {"commit": commit_of(ROOT), "against": options.commit}
        versions = ", ".join(f"{name} {version}" for name, version in around["versions"].items())
        print(
            f"{commits['commit']} against {commits['against']}: {around['machine']['cpu']}, "
            f"{around['threads']} threads, {versions}, {around['date']}"
        )
        print(f"{'':35} {'best':>8} {'median':>8}   {'pairs':14} {'this, ms':>10} {'commit':>10}")
        rows = []
        for case in options.case or [case for case in CASES if case != LARGE]:
            rows += (new := measured(case, ROOT, other, effort))
            print("\n".join(map(shown, new)), flush=True)
    if options.out is not None:
        command = " ".join(["python", *sys.argv])
        write_json(options.out, {"command": command, **commits, **around, "rows": rows})


if __name__ == "__main__":
    main()
