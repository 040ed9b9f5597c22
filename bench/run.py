"""`make bench`: the cost of a scan, relative to the model's own fused forward pass in the same run.

Prints a table, writes bench/results.json and from it the tables of README.md and docs/costs.md.
Machines are noisy: compare ratios, and do more than one run.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.cost_tables import write

RESULTS = Path(__file__).with_name("results.json")
WAYS = {
    "minilm": ["bare", "scan", "eager"],
    "llama-4096": ["bare", "scan", "eager"],
    "llama-32768": ["bare", "scan"],
    "smollm2": ["bare", "scan"],
}
TURNS = {"minilm": 7, "llama-4096": 3, "llama-32768": 1, "smollm2": 1}
REACH = {
    ("minilm", "time"): 1.35,
    ("minilm", "memory"): 1.3,
    ("llama-4096", "time"): 2.0,
    ("llama-4096", "memory"): 1.5,
}


def work(*words: str) -> dict[str, Any]:
    """Run one measurement in its own process."""
    done = subprocess.run([sys.executable, "-m", "bench.work", *words], stdout=subprocess.PIPE, check=True, text=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def measure(subject: str) -> list[dict[str, Any]]:
    timed = work("time", subject, ",".join(WAYS[subject]), "--turns", str(TURNS[subject]))
    memory = {way: work("memory", subject, way) for way in WAYS[subject]}
    bare_seconds, bare_added = timed["seconds"]["bare"], memory["bare"]["added_mb"]
    return [
        {
            "subject": subject,
            "way": way,
            "cpu_seconds": timed["seconds"][way],
            "tokens_per_second": timed["tokens"] / timed["seconds"][way],
            "time_ratio": timed["seconds"][way] / bare_seconds,
            "memory_ratio": memory[way]["added_mb"] / bare_added,
            **memory[way],
        }
        for way in WAYS[subject]
    ]


def two_threads() -> dict[str, float]:
    """Return the wall time of a scan of MiniLM and of the bare forward pass, both on two threads."""
    seconds = work("wall", "minilm", "bare,scan", "--turns", "5", "--threads", "2")["seconds"]
    return {**seconds, "ratio": seconds["scan"] / seconds["bare"]}


def report_megabytes() -> float:
    """Return the size of the report of SmolLM2, which has 30 blocks of 9 heads."""
    from attnscope.commands.records import report as write_report
    from bench.subjects import smollm2

    subject = smollm2()
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        write_report(subject.scan().survey({"model": {"name": "SmolLM2-135M"}}), page)
        return page.stat().st_size / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("subjects", nargs="*", default=list(WAYS), help=", ".join(WAYS))
    options = parser.parse_args()
    rows = [row for subject in options.subjects for row in measure(subject)]
    wall = two_threads() if "minilm" in options.subjects else None
    table = Table(title="cost of a scan (one thread; bare fused forward = 1)")
    for heading in ("subject", "way", "tokens/s", "time", "reach", "memory added", "reach", "peak MB"):
        table.add_column(heading, justify="left" if heading in ("subject", "way") else "right")
    for row in rows:
        scanned = row["way"] == "scan"
        table.add_row(
            row["subject"],
            row["way"],
            f"{row['tokens_per_second']:,.0f}",
            f"{row['time_ratio']:.2f}x",
            f"{REACH.get((row['subject'], 'time'), '')}" if scanned else "",
            f"{row['memory_ratio']:.2f}x",
            f"{REACH.get((row['subject'], 'memory'), '')}" if scanned else "",
            f"{row['peak_mb']:,.0f}",
        )
    console = Console(width=110)
    console.print(table)
    earlier = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"rows": []}
    kept = [row for row in earlier["rows"] if row["subject"] not in options.subjects]
    results: dict[str, Any] = {**earlier, "machine": platform.processor() or platform.machine(), "rows": rows + kept}
    if wall is not None:
        results["two_threads"] = wall
        console.print(f"MiniLM, two threads, wall time: {wall['ratio']:.2f}x (reach: 1.2)")
    if "smollm2" in options.subjects:
        results["report_mb_30x9"] = report_megabytes()
        console.print(f"report for 30 blocks x 9 heads: {results['report_mb_30x9']:.2f} MB (reach: 2)")
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    write()
    console.print(f"written to {RESULTS.relative_to(Path.cwd())}")


if __name__ == "__main__":
    main()
