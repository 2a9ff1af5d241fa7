"""Put the result of tools/elsewhere.sh into results/elsewhere.json, a row per environment.

PYTHONPATH=bench python tools/elsewhere_result.py TESTS.XML RESULT.JSON COMMAND EXIT_CODE COMMIT
"""

from __future__ import annotations

import json
import platform
import sys
import xml.etree.ElementTree as ElementTree
from importlib.metadata import version
from pathlib import Path
from typing import Any

from record import surroundings

from snip.common.files import write_json

# There is one row of each.
ENVIRONMENT = ("system", "python_of_the_system", "python", "torch", "numpy")


def counted(report: Path) -> dict[str, float]:
    """Numbers of tests that passed, failed and were skipped, and the seconds of all."""
    (suite,) = ElementTree.parse(report).getroot().iter("testsuite")
    ran, skipped = int(suite.attrib["tests"]), int(suite.attrib["skipped"])
    failed = int(suite.attrib["failures"]) + int(suite.attrib["errors"])
    return {
        "passed": ran - failed - skipped,
        "failed": failed,
        "skipped": skipped,
        "seconds": round(float(suite.attrib["time"])),
    }


def environment() -> dict[str, Any]:
    """System, versions and machine of the tests, without its paths."""
    around = surroundings()
    return {
        "system": platform.freedesktop_os_release()["PRETTY_NAME"],
        "python_of_the_system": sys.base_prefix == "/usr",
        "python": around["versions"]["python"],
        "torch": around["versions"]["torch"],
        "numpy": version("numpy"),
        "torchvision": version("torchvision"),
        "machine": around["machine"],
        "date": around["date"],
    }


def with_row(rows: list[dict[str, Any]], row: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows with this one in the place of an earlier one of the same environment."""
    others = [one for one in rows if any(one[name] != row[name] for name in ENVIRONMENT)]
    return sorted([*others, row], key=lambda one: [str(one[name]) for name in ENVIRONMENT])


def main() -> None:
    report, results = Path(sys.argv[1]), Path(sys.argv[2])
    command, code, commit = sys.argv[3:]
    content = json.loads(results.read_text()) if results.exists() else {"rows": []}
    done = {"command": command, "exit_code": int(code), "commit": commit}
    row = {**environment(), **done, **counted(report)}
    rows = with_row(content["rows"], row)
    write_json(results, {"command": "tools/elsewhere.sh", "rows": rows})
    print(json.dumps(row, indent=2))


if __name__ == "__main__":
    main()
