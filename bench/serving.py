"""`python -m bench.serving`: patterns per second on fixed keys, one by one and all together.

Patterns are unions of k random permutations of 256 keys with weights within a factor of 4, in float32, at default
accuracy and the widths in docs/patterns.md. `queries_for`, rounding and the certificate take one pattern after another,
`queries_for_many` takes all together. Rates are per processor second of one thread: the median of several alternating
turns, so that other load affects both. The first turn of `queries_for_many`, which sees every support for the first
time, is reported separately. Results go to bench/serving.json, from which the table of docs/patterns.md is written.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

from attnscope.core.files import write_atomically
from tools.marked import put_between_marks

ROOT = Path(__file__).parent.parent
RECORD, PAGE = ROOT / "bench" / "serving.json", ROOT / "docs" / "patterns.md"
N = 256
CASES = ((2, 6, 512), (4, 14, 64), (8, 29, 64))  # k, width, patterns
SLOWLY = 8  # patterns in a turn of the slow way
TURNS = 5


def measure(k: int, width: int, many: int) -> dict[str, Any]:
    import torch

    from attnscope import generate
    from attnscope.commands.compile.fixed_keys import fixed_keys, queries_for, queries_for_many
    from attnscope.heads.accuracy import Accuracy
    from attnscope.heads.certificate import certify
    from attnscope.heads.rounding import rounded

    torch.set_num_threads(1)
    keys, accuracy = fixed_keys(N, width), Accuracy()
    patterns = [generate("union_of_permutations", N, k, seed=seed) for seed in range(many)]
    solver = queries_for_many(keys)
    start = time.process_time()
    served = solver.solve(patterns)
    first = time.process_time() - start
    fast, slow, reached = [], [], []
    for turn in range(TURNS):
        some = patterns[turn * SLOWLY : (turn + 1) * SLOWLY]
        start = time.process_time()
        for pattern in some:
            head = rounded(queries_for(pattern, keys), pattern, accuracy.dtype, "margin")
            reached.append(certify(head, pattern, accuracy).reached)
        slow.append(len(some) / (time.process_time() - start))
        start = time.process_time()
        served = solver.solve(patterns)
        fast.append(many / (time.process_time() - start))
    checked = [certify(head, one, accuracy).reached for head, one in zip(served.heads, patterns, strict=True)]
    if checked != served.certified:
        raise SystemExit("the quick check and the certificate disagree")
    return {
        "n": N,
        "k": k,
        "width": width,
        "patterns": many,
        "slow": statistics.median(slow),
        "first": many / first,
        "fast": statistics.median(fast),
        "fast_of_turns": fast,
        "certified": sum(served.certified),
        "certified_slowly": [sum(reached), sum(served.certified[: len(reached)]), len(reached)],
        "looked_at_again": served.looked_at_again / (many * N),
    }


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| k | width | one by one | together, supports not met before | together | certified, one by one and together "
        "| rows looked at again |",
        "|---" * 7 + "|",
    ]
    for row in rows:
        one, other, of = row["certified_slowly"]
        lines.append(
            f"| {row['k']} | {row['width']} | {row['slow']:.3g} | {row['first']:.3g} | {row['fast']:.3g} "
            f"| {one} and {other} of {of} | {row['looked_at_again']:.2%} |"
        )
    return "\n".join(lines)


def with_table(page: str, rows: list[dict[str, Any]]) -> str:
    return put_between_marks(page, "serving", "bench/serving.py", table(rows))


def main() -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rows = []
    for case in CASES:
        rows.append(measure(*case))
        print(json.dumps(rows[-1]), flush=True)
    write_atomically(RECORD, (json.dumps(rows, indent=1) + "\n").encode())
    write_atomically(PAGE, with_table(PAGE.read_text(encoding="utf-8"), rows).encode())


if __name__ == "__main__":
    main()
