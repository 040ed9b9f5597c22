"""`python -m bench.searches [--only WORDS] [--seeds ...]`: what `compile` finds for difficult patterns.

Each is compiled with `attnscope.compile` at default accuracy in float32, with a budget of processor seconds. After
every search bench/searches.json gets the width found, the processor seconds until that head was found and of the whole
search, and the result of its certificate. The table of docs/patterns.md is written from that file.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attnscope.core.files import write_atomically
from attnscope.heads.generate import union_of_permutations
from attnscope.heads.pattern import Pattern
from bench.graphs import erdos_renyi, power_law
from tools.marked import put_between_marks

ROOT = Path(__file__).parent.parent
RECORD, PAGE = ROOT / "bench" / "searches.json", ROOT / "docs" / "patterns.md"
SEEDS = (0, 1, 2)

CASES: dict[str, tuple[Callable[[int], Pattern], float]] = {  # how to make the pattern from a seed, and the budget
    "power-law graph, n = 256": (lambda seed: power_law(256, 3, seed), 20),
    "random graph, n = 256": (lambda seed: erdos_renyi(256, 8, seed), 20),
    "union of 4, n = 256": (lambda seed: union_of_permutations(256, 4, seed), 60),
    "union of 8, n = 1024": (lambda seed: union_of_permutations(1024, 8, seed), 300),
    "union of 4, n = 4096": (lambda seed: union_of_permutations(4096, 4, seed), 300),
}


def measure(name: str, seed: int) -> dict[str, Any]:
    from attnscope import compile

    make, budget = CASES[name]
    pattern = make(seed)
    compiled = compile(pattern, budget=budget, seed=seed)
    certificate = compiled.certificate
    until, spent = None, 0.0
    for one in compiled.tried:
        spent += one.seconds
        if until is None and one.reached and one.width == certificate.d:
            until = spent
    return {
        "pattern": name,
        "seed": seed,
        "fullest_row": pattern.k,
        "width": certificate.d if certificate.reached else None,
        "ratio_error": certificate.ratio_error,
        "leak": certificate.leak,
        "seconds_until": until,
        "seconds": compiled.seconds,
        "budget": budget,
        "out_of_time": compiled.out_of_time,
        "tried": [[one.width, one.reached, round(one.seconds, 2)] for one in compiled.tried],
    }


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| pattern | seed | fullest row | width | processor seconds until then | of the whole search |",
        "|---" * 6 + "|",
    ]
    for row in rows:
        until = "" if row["seconds_until"] is None else f"{row['seconds_until']:.1f}"
        whole = f"{row['seconds']:.0f}{' (its budget)' if row['out_of_time'] else ''}"
        width = row["width"] or "not reached"
        lines.append(f"| {row['pattern']} | {row['seed']} | {row['fullest_row']} | {width} | {until} | {whole} |")
    return "\n".join(lines)


def with_table(page: str, rows: list[dict[str, Any]]) -> str:
    return put_between_marks(page, "searches", "bench/searches.py", table(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="patterns whose name begins like this")
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--table", action="store_true", help="only write the table again")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    kept = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else []
    for name in () if options.table else CASES:
        for seed in options.seeds if name.startswith(options.only) else ():
            row = measure(name, seed)
            print(json.dumps(row), flush=True)
            kept = [one for one in kept if (one["pattern"], one["seed"]) != (name, seed)] + [row]
            kept.sort(key=lambda one: (list(CASES).index(one["pattern"]), one["seed"]))
            write_atomically(RECORD, (json.dumps(kept, indent=1) + "\n").encode())
    write_atomically(PAGE, with_table(PAGE.read_text(encoding="utf-8"), kept).encode())


if __name__ == "__main__":
    main()
