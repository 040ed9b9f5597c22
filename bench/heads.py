"""`python -m bench.heads [--quick]`: how narrow a head each construction finds, and the processor time for one head.

The width is the median over three patterns (seeds 0, 1, 2), each found by walking down from a starting width until
one fails (first up, if the start fails). Seconds are processor time, both cores added, of building one head at the
median width. Every case runs in its own process, so that its peak memory can be measured.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

SEEDS = (0, 1, 2)
GIVE_UP = 4  # largest width tried, in multiples of the starting width


@dataclass(frozen=True)
class Case:
    """A kind of pattern, the width at which the search begins, and the targets for `joint` (0 means no target)."""

    n: int
    k: int
    start: int
    width: int = 0
    seconds: float = 0
    kind: str = "union_of_permutations"
    dtype: str = "float32"
    search: bool = True  # whether to walk down; otherwise only the starting width is tried

    @property
    def name(self) -> str:
        kind = "" if self.kind == "union_of_permutations" else f" {self.kind}"
        return f"{self.n:,} x {self.k}{kind}{'' if self.dtype == 'float32' else f' {self.dtype}'}"


CASES = (
    *(Case(256, k, start, width, 5) for k, start, width in ((1, 3, 3), (2, 5, 5), (4, 8, 10), (8, 13, 18))),
    *(Case(1024, k, start, width, 30) for k, start, width in ((1, 3, 4), (2, 6, 6), (4, 10, 12), (8, 18, 24))),
    *(Case(4096, k, start, width, 60) for k, start, width in ((1, 3, 5), (2, 7, 8), (4, 13, 16), (8, 24, 32))),
    Case(16384, 4, 18, 0, 600, search=False),
    *(Case(256, k, 2 * k + 2, width, 5, dtype="bfloat16") for k, width in ((2, 0), (4, 16), (8, 0))),
    Case(1024, 4, 13, 24, 30, dtype="bfloat16"),
    *(
        Case(256, k, width, width, 5, kind=kind)
        for kind in ("window", "strided", "sink_window")
        for k, width in ((2, 5), (4, 6), (8, 10))
    ),
)
QUICK = tuple(case for case in CASES if case.n == 256)


def measure(case: Case, method: str, seeds: Iterable[int] = SEEDS) -> dict[str, Any]:
    """Walk down for every seed; return a row of the table."""
    walks = [_walk(case, method, seed) for seed in seeds]
    reached = [min(walk) for walk in walks if walk]
    width = statistics.median_high(reached) if len(reached) == len(walks) else None
    seconds = [walk[width] for walk in walks if width in walk]
    return {
        **asdict(case),
        "case": case.name,
        "method": method,
        "widths": reached,
        "median_width": width,
        "cpu_seconds": statistics.median(seconds) if seconds else None,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _walk(case: Case, method: str, seed: int) -> dict[int, float]:
    """Return the processor seconds of every width that reached the accuracy."""
    from attnscope.core.registry import constructions
    from attnscope.heads.accuracy import DTYPES, Accuracy
    from attnscope.heads.generate import generate

    pattern = generate(case.kind, case.n, case.k, seed=seed)
    accuracy = Accuracy(dtype=next(dtype for dtype in DTYPES if dtype == case.dtype))
    construction = constructions()[method]

    def seconds_at(width: int) -> float | None:
        from attnscope.core.errors import RefusalError
        from attnscope.heads.certificate import certify
        from attnscope.heads.rounding import rounded

        start = time.process_time()
        try:
            factors = construction(pattern, width, accuracy, np.random.default_rng(seed))
        except RefusalError:
            return None
        head = rounded(factors, pattern, accuracy.dtype, method)
        spent = time.process_time() - start
        return spent if certify(head, pattern, accuracy).reached else None

    if construction.fixed_width or not case.search:
        width = construction.fixed_width(pattern) if construction.fixed_width else case.start
        spent = seconds_at(width)
        return {} if spent is None else {width: spent}
    seconds: dict[int, float] = {}
    width = case.start
    while (spent := seconds_at(width)) is None and width < GIVE_UP * case.start:
        width += max(1, width // 8)
    while spent is not None:
        seconds[width] = spent
        width -= 1
        spent = seconds_at(width) if width >= 1 else None
    return seconds


def measure_apart(case: Case, method: str, seeds: Iterable[int] = SEEDS) -> dict[str, Any]:
    words = ["--case", json.dumps(asdict(case)), "--methods", method, "--seeds", *map(str, seeds)]
    done = subprocess.run([sys.executable, "-m", "bench.heads", *words], stdout=subprocess.PIPE, check=True, text=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def show(rows: list[dict[str, Any]], console: Console) -> None:
    table = Table(title="smallest width found (median), processor seconds for one head at it")
    for heading in ("pattern", "method", "width", "reach", "of each seed", "seconds", "reach", "peak MB"):
        table.add_column(heading, justify="left" if heading in ("pattern", "method") else "right")
    for row in rows:
        joint = row["method"] == "joint"
        table.add_row(
            row["case"],
            row["method"],
            "not reached" if row["median_width"] is None else str(row["median_width"]),
            str(row["width"] or "") if joint else "",
            " ".join(map(str, row["widths"])),
            "" if row["cpu_seconds"] is None else f"{row['cpu_seconds']:.1f}",
            f"{row['seconds']:g}" if joint else "",
            f"{row['peak_mb']:,.0f}",
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="n = 256 and one seed")
    parser.add_argument("--methods", nargs="+", default=["joint"], help="constructions, by name")
    parser.add_argument("--seeds", nargs="+", type=int, default=None)
    parser.add_argument("--only", default="", help="cases whose name begins like this")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    seeds = options.seeds or (SEEDS[:1] if options.quick else SEEDS)
    if options.case:
        print(json.dumps(measure(Case(**json.loads(options.case)), options.methods[0], seeds)))
        return
    console = Console(width=120)
    rows = []
    for case in QUICK if options.quick else CASES:
        if not case.name.startswith(options.only):
            continue
        for method in options.methods:
            rows.append(measure_apart(case, method, seeds))
            console.print(json.dumps(rows[-1]), soft_wrap=True, highlight=False)
    show(rows, console)


if __name__ == "__main__":
    main()
