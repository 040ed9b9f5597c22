"""Write the table of widths in docs/patterns.md from the measurements that ship with the package.

python -m tools.widths_table
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from pathlib import Path

from attnscope.core.files import write_atomically
from tools.marked import put_between_marks

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "patterns.md"
KNOWN = ROOT / "src" / "attnscope" / "commands" / "capacity" / "known_widths.json"
METHODS = {
    "frame": "frame",
    "margin": "margin",
    "moment_curve": "moment curve",
    "random_projection": "random projection, finished",
    "random_projection_rows": "rows only, finished",
}
SIZES, COUNTS, SEEDS = (64, 256), (1, 2, 4, 8), 3


def table(known: list[dict[str, object]]) -> str:
    """Return medians over seeds in float32, with the number of seeds if it is below three."""
    found: dict[tuple[object, ...], list[int | None]] = defaultdict(list)
    for one in known:
        if one["dtype"] == "float32":
            found[one["method"], one["n"], one["k"]].append(one["d"])  # type: ignore[arg-type]
    lines = [f"| n | k | {' | '.join(METHODS.values())} |", "|---" * (2 + len(METHODS)) + "|"]
    for n in SIZES:
        for k in COUNTS:
            cells = (_cell(found[method, n, k]) for method in METHODS)
            lines.append(f"| {n} | {k} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(widths: list[int | None]) -> str:
    reached = sorted(width for width in widths if width is not None)
    if not widths:
        return "not measured"
    if len(reached) * 2 <= len(widths):
        return "not reached"
    few = "" if len(widths) >= SEEDS else f" ({len(widths)} seed{'s' if len(widths) > 1 else ''})"
    return f"{statistics.median_high(reached)}{few}"


def with_table(page: str, text: str) -> str:
    return put_between_marks(page, "widths", "tools/widths_table.py", text)


def written() -> str:
    """Return the page with the current table."""
    known = json.loads(KNOWN.read_text(encoding="utf-8"))["measurements"]
    return with_table(PAGE.read_text(encoding="utf-8"), table(known))


if __name__ == "__main__":
    write_atomically(PAGE, written().encode())
