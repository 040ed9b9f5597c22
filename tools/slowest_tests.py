"""Write the slowest test files of the last `make test` into CONTRIBUTING.md.

make test && .venv/bin/python -m tools.slowest_tests
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "CONTRIBUTING.md"
MARKS = ("<!-- slowest: written by tools/slowest_tests.py -->", "<!-- end of slowest -->")
SHOWN = 15


def seconds_by_file(report: Path) -> Counter[str]:
    """Return the seconds that each test file took, from a JUnit report."""
    seconds: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        seconds[case.get("classname", "").replace(".", "/") + ".py"] += float(case.get("time", 0))
    return seconds


def main(report: Path = ROOT / "build" / "tests.xml") -> None:
    seconds = seconds_by_file(report)
    rows = [f"| `{name}` | {took:.0f} |" for name, took in seconds.most_common(SHOWN)]
    total = f"| all {len(seconds)} files | {sum(seconds.values()):.0f} |"
    before, rest = PAGE.read_text("utf-8").split(MARKS[0])
    table = "\n".join(["| file | seconds of one core |", "|---|---|", *rows, total])
    PAGE.write_text(f"{before}{MARKS[0]}\n\n{table}\n\n{MARKS[1]}{rest.split(MARKS[1])[1]}", "utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
