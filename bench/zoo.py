"""Every network that people bring: pruned, trained, accelerated, evaluated, saved and loaded.

    python bench/zoo.py                       # 18 networks at 90% and 98%: twenty minutes
    python bench/zoo.py gpt-2 u-net --sparsity 0.95
    python bench/zoo.py --seconds 0           # does it work at all: no time for good timings
    python bench/zoo.py --out results/zoo.json --before ../older

Each row is one network with Snip's defaults and an ordinary loop. "dense" is the network without
Snip, the faster of eager and channels last; the ratios are its time over that of the network that
`snip.accelerate` returns. Prune is in forward+backward passes of the same batch.

`--before` names another checkout of Snip (`git worktree add ../older <commit>`): each row is
measured with both, one after the other; with `--before-alone` only with that one. `--out` keeps the
rows as data, each with its date and commit. A row that is there already, of the same commit and for
as many seconds, is shown and not measured again; one that is measured anew takes the place of the
older one of the same network and sparsity; all others stay. The table at the end has every row of
the file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from checkouts import build_kernels, commit_of, seeing
from record import surroundings
from zoo_networks import ZOO
from zoo_row import SEED
from zoo_table import shown, spread, table

from snip.cli.length import spoken
from snip.common.files import write_json

HERE = Path(__file__).resolve().parent
SPARSITIES = (0.90, 0.98)
SECONDS = 1.5  # of measuring per way, about
PLACE = ("checkout", "network", "sparsity")  # there is one row of each, the last that was measured
SAME = ("commit", "seconds")  # a row in which these are others is measured again
Rows = dict[tuple[Any, ...], dict[str, Any]]


def measured(checkout: Path, row: dict[str, Any]) -> dict[str, Any]:
    """The row with its cells, or with what failed: even the end of the process."""
    words = [str(row[name]) for name in ("network", "sparsity", "seconds")]
    command = [sys.executable, str(HERE / "zoo_row.py"), *words]
    done = subprocess.run(
        command, env=seeing(checkout), capture_output=True, text=True, check=False
    )
    row = row | {"date": surroundings()["date"]}
    lines = done.stdout.splitlines()
    if done.returncode == 0 and lines:
        return row | json.loads(lines[-1])
    said = done.stderr.strip().splitlines() or ["nothing was said"]
    return row | {"failed": f"the process ended with {done.returncode}: {said[-1]}"}


def wanted(options: argparse.Namespace, checkouts: dict[str, Path]) -> Rows:
    """The rows to show, without their cells."""
    commits = {name: commit_of(place) for name, place in checkouts.items()}
    rows = [
        {
            "checkout": name,
            "commit": commits[name],
            "network": network.name,
            "sparsity": sparsity,
            "seconds": options.seconds,
        }
        for network in ZOO
        if network.name in options.networks or not options.networks
        for sparsity in options.sparsity
        for name in checkouts
    ]
    return by_place(rows)


def by_place(rows: Iterable[dict[str, Any]]) -> Rows:
    """Rows by what there is one of: the last of each."""
    return {tuple(row[part] for part in PLACE): row for row in rows}


def is_same(row: dict[str, Any], other: dict[str, Any] | None) -> bool:
    """Whether another row was measured as this one would be."""
    return other is not None and all(row[part] == other[part] for part in SAME)


def kept(path: Path | None) -> dict[str, Any]:
    """What the file of earlier calls has. Its rows have a date, older ones that of the file."""
    content = json.loads(path.read_text()) if path is not None and path.exists() else {}
    date = {"date": content["date"]} if "date" in content else {}
    return {**content, "rows": [date | row for row in content.get("rows", [])]}


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    names = [network.name for network in ZOO]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", metavar="network", help=", ".join(names))
    parser.add_argument("--sparsity", type=float, nargs="*", default=SPARSITIES)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--before", type=Path, help="another checkout, measured beside this one")
    parser.add_argument("--before-alone", action="store_true", help="rows of this one stay")
    parser.add_argument("--out", type=Path, help="a JSON file that keeps the rows")
    options = parser.parse_args(given)
    unknown = set(options.networks) - set(names)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; the zoo has {', '.join(names)}")
    if options.before is not None and not (options.before / "src/snip").is_dir():
        parser.error(f"--before {options.before} is no checkout of Snip: it has no src/snip")
    if options.before_alone and options.before is None:
        parser.error("--before-alone measures the checkout that --before names: give that as well")
    return options


def main(given: Sequence[str] | None = None) -> None:
    options = arguments(given)
    checkouts = {"before": options.before.resolve()} if options.before else {}
    if not options.before_alone:
        checkouts["now"] = HERE.parent
    for checkout in checkouts.values():
        build_kernels(checkout)
    rows, content = wanted(options, checkouts), kept(options.out)
    found = by_place(content["rows"])
    missing = sum(not is_same(row, found.get(place)) for place, row in rows.items())
    begun, done = time.monotonic(), 0
    about = {"command": " ".join(["python", *sys.argv]), "seed": SEED}
    print(f"the zoo, {surroundings()['threads']} threads, ratios over dense", flush=True)
    for place, row in rows.items():
        known = is_same(row, found.get(place))
        found[place] = found[place] if known else measured(checkouts[row["checkout"]], row)
        print(shown(found[place]), flush=True)
        if known:
            continue
        if options.out is not None:
            rows_so_far = {"rows": list(found.values())}
            write_json(options.out, {**content, **about, **surroundings(), **rows_so_far})
        done += 1
        left = (time.monotonic() - begun) / done * (missing - done)
        print(f"{done} of {missing} rows, {spoken(left)} left", file=sys.stderr, flush=True)
    print(table(found.values()))
    if over_all := spread(found.values()):  # nothing where all rows failed
        print(over_all)


if __name__ == "__main__":
    main()
