"""Measure what each construction needs, for commands/capacity/known_widths.json, which ships with the package.

    python tools/measure_capacity.py                          # everything that is missing; hours
    python tools/measure_capacity.py --sizes 64 256 --counts 1 2 4 --seconds 60
    python tools/measure_capacity.py --fresh                  # also what is of an older REVISION (widths.py)

Every number is the smallest width found on a union of k random permutations (seeds 0, 1, 2) at ratio error 0.1 and leak
0.01. The file is written after every measurement, so Ctrl-C loses one at most and the next run goes on, with --fresh
too: what it has not come to stays as it was. A search that takes longer than --seconds is kept with what it found by
then, marked so; one that had found nothing is left out.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from attnscope.commands.capacity.widths import REVISION, Measurement, Point, known_widths_json, measure
from attnscope.core.files import write_atomically
from attnscope.core.registry import constructions

TARGET = Path(__file__).parent.parent / "src" / "attnscope" / "commands" / "capacity" / "known_widths.json"


def main() -> None:
    asked = _arguments()
    stored = json.loads(TARGET.read_text(encoding="utf-8"))["measurements"]
    kept: dict[Point, Measurement] = {one.point: one for one in map(Measurement.from_json, stored)}
    good = {point for point, one in kept.items() if one.revision == REVISION or not asked.fresh}
    points = [
        Point(method, n, k, dtype, 0.1, 0.01, seed)
        for n in asked.sizes
        for k in asked.counts
        if 2 * k <= n
        for seed in asked.seeds
        for dtype in asked.dtypes
        for method in asked.methods
    ]
    too_long: set[tuple[str, int, int, str]] = set()
    for point in points:
        place = (point.method, point.n, point.k, point.dtype)
        if point in good or place in too_long or (asked.known and point not in kept):
            continue
        start = time.monotonic()
        measurement = measure(point, asked.seconds)
        spent = time.monotonic() - start
        if measurement.cut_short and measurement.d is None:
            too_long.add(place)
            print(f"{place}: more than {spent:.0f} s, left out")
            continue
        print(f"{place} seed {point.seed}: width {measurement.d} in {spent:.1f} s {measurement.refused}")
        kept[point] = measurement
        good.add(point)
        write_atomically(TARGET, known_widths_json(kept.values()))
    older = sum(one.revision < REVISION for one in kept.values())
    print(f"{len(kept)} measurements in {TARGET}, {older} of an older revision")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[16, 64, 256, 1024, 4096])
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--methods", nargs="+", default=list(constructions()))
    parser.add_argument("--seconds", type=float, default=300.0, help="for one measurement, at most about")
    parser.add_argument("--fresh", action="store_true", help="measure again what is of an older revision")
    parser.add_argument("--known", action="store_true", help="nothing that was never measured")
    return parser.parse_args()


if __name__ == "__main__":
    main()
