"""Measure what each construction needs, for src/attnscope/compiling/known_widths.json, which ships with the package.

    python tools/measure_capacity.py                          # everything that is missing; hours
    python tools/measure_capacity.py --sizes 64 256 --counts 1 2 4 --seconds 60
    python tools/measure_capacity.py --fresh                  # after a construction has changed: all of it again

Every number is the smallest width found on a union of k random permutations (seeds 0, 1, 2) at ratio error 0.1 and leak
0.01. The file is written after every measurement, so Ctrl-C loses one at most and the next run goes on. A search that
takes longer than --seconds is kept with what it had found by then, marked so; one that had found nothing is left out.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from attnscope.compiling.widths import Measurement, Point, known_widths_json, measure
from attnscope.core.files import write_atomically
from attnscope.core.registry import constructions

TARGET = Path(__file__).parent.parent / "src" / "attnscope" / "compiling" / "known_widths.json"


def main() -> None:
    asked = _arguments()
    kept: dict[Point, Measurement] = {}
    if not asked.fresh:
        stored = json.loads(TARGET.read_text(encoding="utf-8"))["measurements"]
        kept = {one.point: one for one in map(Measurement.from_json, stored)}
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
        if point in kept or place in too_long:
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
        write_atomically(TARGET, known_widths_json(kept.values()))
    print(f"{len(kept)} measurements in {TARGET}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[16, 64, 256, 1024, 4096])
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--methods", nargs="+", default=list(constructions()))
    parser.add_argument("--seconds", type=float, default=300.0, help="for one measurement, at most about")
    parser.add_argument("--fresh", action="store_true", help="forget what is there and measure all of it again")
    return parser.parse_args()


if __name__ == "__main__":
    main()
