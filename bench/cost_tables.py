"""Write what a scan costs into README.md and docs/costs.md, from bench/results.json.

python -m bench.cost_tables
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from attnscope.core.files import write_atomically
from tools.marked import put_between_marks

ROOT = Path(__file__).parents[1]
WORK = {
    "minilm": "MiniLM, 64 texts x 128 tokens, default measures",
    "llama-4096": "4-block grouped-head Llama, n = 4096",
    "llama-32768": "the same at n = 32,768",
    "smollm2": "SmolLM2-135M, WikiText-2, 64 x 256 tokens",
}
MAPS_GB = {"llama-32768": 4 * 8 * 32_768**2 * 4 / 1e9}  # blocks x heads x n x n x bytes: more than there is memory
IN_README = ("minilm", "llama-4096", "llama-32768")


def table(results: dict[str, Any], subjects: tuple[str, ...]) -> str:
    """Return one row per subject: time relative to the bare forward pass, and the peak memory of the process."""
    rows = {(row["subject"], row["way"]): row for row in results["rows"]}
    lines = ["| work | bare | scan | eager maps + statistics |", "|---|---|---|---|"]
    for subject in subjects:
        if (subject, "scan") in rows:
            cells = (_cell(rows, subject, way) for way in ("bare", "scan", "eager"))
            lines.append(f"| {WORK[subject]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(rows: dict[tuple[str, str], dict[str, Any]], subject: str, way: str) -> str:
    row = rows.get((subject, way))
    if row is None:
        return f"not run: {MAPS_GB[subject]:.0f} GB of maps" if subject in MAPS_GB else "not measured"
    memory = f"{row['peak_mb']:,.0f} MB"
    return memory if way == "bare" else f"{row['time_ratio']:.2f}x, {memory}"


def beside(results: dict[str, Any]) -> str:
    """Return the other results of a run, in sentences."""
    said = f"The report of 30 blocks x 9 heads (SmolLM2-135M) has {results['report_mb_30x9']:.2f} MB."
    if "two_threads" in results:
        ratio = results["two_threads"]["ratio"]
        said += (
            f" On two threads, a scan of MiniLM takes {ratio:.2f}x the wall time of the bare forward on two threads."
        )
    return said


def with_costs(page: str, text: str) -> str:
    return put_between_marks(page, "costs", "bench/cost_tables.py", text)


def pages(results: dict[str, Any]) -> dict[Path, str]:
    return {
        ROOT / "README.md": table(results, IN_README),
        ROOT / "docs" / "costs.md": f"{table(results, tuple(WORK))}\n\n{beside(results)}",
    }


def write() -> None:
    results = json.loads((ROOT / "bench" / "results.json").read_text(encoding="utf-8"))
    for page, text in pages(results).items():
        write_atomically(page, with_costs(page.read_text(encoding="utf-8"), text).encode())


if __name__ == "__main__":
    write()
