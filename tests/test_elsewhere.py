"""The results of tools/elsewhere.sh: what is counted, and which row is replaced."""

from pathlib import Path

from elsewhere_result import ENVIRONMENT, counted, with_row

REPORT = """<?xml version="1.0" encoding="utf-8"?><testsuites name="pytest tests">
<testsuite name="pytest" errors="1" failures="2" skipped="3" tests="10" time="61.4"></testsuite>
</testsuites>"""


def test_counts_come_from_the_report_of_the_tests(tmp_path: Path) -> None:
    (tmp_path / "tests.xml").write_text(REPORT)
    expected = {"passed": 4, "failed": 3, "skipped": 3, "seconds": 61}
    assert counted(tmp_path / "tests.xml") == expected


def test_a_row_takes_the_place_of_that_of_its_environment_alone() -> None:
    here = dict.fromkeys(ENVIRONMENT, "1") | {"passed": 1}
    rows = with_row([], here)
    for name in ENVIRONMENT:
        rows = with_row(rows, here | {name: "2"})
    assert len(rows) == 1 + len(ENVIRONMENT)
    again = with_row(rows, here | {"passed": 2})
    assert [row["passed"] for row in again] == [2, *[1] * len(ENVIRONMENT)]
