"""Try the property tests on new examples for a while; the exit code is 1 if one fails.

python tests/fuzz.py 300            # seconds; one round is finished at least
python tests/fuzz.py --seed 12345   # a round again that failed
"""

from __future__ import annotations

import argparse
import secrets
import subprocess
import sys
import time
from pathlib import Path

TESTS = Path(__file__).parent


def round_passes(seed: int) -> bool:
    """Run every property test with the examples that the seed gives."""
    print(f"seed {seed}", flush=True)
    flags = ["-m", "hypothesis", "--hypothesis-profile=fuzz", f"--hypothesis-seed={seed}"]
    command = [sys.executable, "-m", "pytest", *flags, "-p", "no:cacheprovider", "-q", str(TESTS)]
    if subprocess.run(command, check=False).returncode == 0:
        return True
    print(f"failed with seed {seed}; again: python tests/fuzz.py --seed {seed}")
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("seconds", nargs="?", type=float, default=60)
    parser.add_argument("--seed", type=int, help="one round with this seed")
    flags = parser.parse_args()
    if flags.seed is not None:
        return 0 if round_passes(flags.seed) else 1
    end, rounds = time.monotonic() + flags.seconds, 0
    while not rounds or time.monotonic() < end:
        if not round_passes(secrets.randbelow(2**32)):
            return 1
        rounds += 1
    print(f"{rounds} rounds passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
