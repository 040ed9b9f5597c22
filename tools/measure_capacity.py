"""Measure what each construction needs, for commands/capacity/known_widths.json, which ships with the package.

    python tools/measure_capacity.py                          # everything that is missing (hours)
    python tools/measure_capacity.py --sizes 64 256 --counts 1 2 4 --seconds 60
    python tools/measure_capacity.py --fresh                  # also measurements of an older REVISION (widths.py)

Every number is the smallest width found on a union of k random permutations (seeds 0, 1, 2) at ratio error 0.1 and leak
0.01. The file is written after every measurement, so Ctrl-C loses at most one, and the next run continues. With
--fresh, old measurements stay until they are replaced. If a search takes longer than --seconds, the best width so far
is kept and marked as such; if there is none, the measurement is left out.
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
    options = _arguments()
    stored = json.loads(TARGET.read_text(encoding="utf-8"))["measurements"]
    kept: dict[Point, Measurement] = {one.point: one for one in map(Measurement.from_json, stored)}
    good = {point for point, one in kept.items() if one.revision == REVISION or not options.fresh}
    points = [
        Point(method, n, k, dtype, 0.1, 0.01, seed)
        for n in options.sizes
        for k in options.counts
        if 2 * k <= n
        for seed in options.seeds
        for dtype in options.dtypes
        for method in options.methods
    ]
    too_long: set[tuple[str, int, int, str]] = set()
    for point in points:
        place = (point.method, point.n, point.k, point.dtype)
        if point in good or place in too_long or (options.known and point not in kept):
            continue
        start = time.monotonic()
        measurement = measure(point, options.seconds)
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
    parser.add_argument("--fresh", action="store_true", help="measure again if the revision is older")
    parser.add_argument("--known", action="store_true", help="skip what was never measured")
    return parser.parse_args()


if __name__ == "__main__":
    main()
