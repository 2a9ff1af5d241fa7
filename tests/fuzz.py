"""Look for what the repeatable tests do not try; the exit code is 1 if something fails.

python tests/fuzz.py 300                            # seconds; one round is finished at least
python tests/fuzz.py --seed 12345                   # a whole round again
python tests/fuzz.py --seed 12345 --kind networks   # one attack again

A round runs the property tests on new examples, then the attacks of each module beside this one
that is called attacks_<kind>.py: its `attack(seed)` raises if something gets past.
"""

from __future__ import annotations

import argparse
import importlib
import math
import secrets
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parent
PROPERTIES = "properties"
PER_ROUND = {PROPERTIES: 1, "kills": 5}  # attacks, which use the seeds from the round's seed on
USUALLY = 100  # attacks of any other kind
PATIENCE = 3600  # seconds until the attacks of one kind count as hanging


def kinds() -> list[str]:
    """What there is to try, by name."""
    return [PROPERTIES, *sorted(path.stem[8:] for path in TESTS.glob("attacks_*.py"))]


def properties_hold(seed: int) -> bool:
    """Run every property test with the examples that the seed gives."""
    flags = ["-m", "hypothesis", "--hypothesis-profile=fuzz", f"--hypothesis-seed={seed}"]
    command = [sys.executable, "-m", "pytest", *flags, "-p", "no:cacheprovider", "-q", str(TESTS)]
    return subprocess.run(command, check=False).returncode == 0


def attack(kind: str, seed: int, count: int) -> None:
    """Run attacks in this process, each announced by its seed."""
    module = importlib.import_module(f"attacks_{kind}")
    for one in range(seed, seed + count):
        print(one, flush=True)
        module.attack(one)


def failing_seed(kind: str, seed: int, count: int) -> int | None:
    """Run attacks in a process of their own, which may crash or hang; the seed that failed."""
    if kind == PROPERTIES:
        return None if properties_hold(seed) else seed
    flags = ["--seed", str(seed), "--kind", kind, "--count", str(count)]
    command = [sys.executable, "-X", "faulthandler", __file__, *flags]
    try:
        done = subprocess.run(command, check=False, stdout=subprocess.PIPE, timeout=PATIENCE)
        said, failed = done.stdout, done.returncode != 0
    except subprocess.TimeoutExpired as hanging:
        said, failed = hanging.stdout or b"", True
    if not failed:
        return None
    return int(said.split()[-1]) if said else seed


def round_passes(seed: int, ran: Counter[str], end: float = math.inf) -> bool:
    """Try every kind from the seed on, as long as there is time, and count what ran."""
    print(f"seed {seed}", flush=True)
    for kind in kinds():
        if time.monotonic() >= end:
            break
        count = PER_ROUND.get(kind, USUALLY)
        failed = failing_seed(kind, seed, count)
        if failed is not None:
            again = f"python tests/fuzz.py --seed {failed} --kind {kind}"
            print(f"{kind} failed with seed {failed}; again: {again}", flush=True)
            ran[kind] += failed - seed + 1
            return False
        ran[kind] += count
        print(f"{kind}: {count} passed", flush=True)
    return True


def rounds_pass(seconds: float, seed: int | None) -> bool:
    """New rounds for so many seconds, the first of them whole; with a seed, that round alone."""
    end, ran = time.monotonic() + seconds, Counter[str]()
    rounds, passed = 1, round_passes(secrets.randbelow(2**32) if seed is None else seed, ran)
    while passed and seed is None and time.monotonic() < end:
        rounds, passed = rounds + 1, round_passes(secrets.randbelow(2**32), ran, end)
    counts = ", ".join(f"{kind} {count}" for kind, count in ran.items())
    print(f"{rounds} rounds {'passed' if passed else 'until a failure'}: {counts}")
    return passed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("seconds", nargs="?", type=float, default=60)
    parser.add_argument("--seed", type=int, help="one round with this seed")
    parser.add_argument("--kind", choices=kinds(), help="with --seed: one attack instead of all")
    parser.add_argument("--count", type=int, default=1, help="with --kind: so many, seed by seed")
    flags = parser.parse_args()
    if flags.kind is None:
        return 0 if rounds_pass(flags.seconds, flags.seed) else 1
    if flags.seed is None:
        parser.error("--kind needs a --seed")
    if flags.kind == PROPERTIES:
        return 0 if properties_hold(flags.seed) else 1
    attack(flags.kind, flags.seed, flags.count)  # what it raises ends this process with status 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
