"""Measure and store the width that a construction needs on one generated pattern.

A width is measured for one method on one pattern (a union of k random permutations with weights within a factor 4, from
one seed) at one accuracy. It is looked up in the package's `known_widths.json` (written by tools/measure_capacity.py),
then in a cache on disk (one small file each, named by a hash of everything that the width depends on), else measured.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from attnscope.core.decoding import FieldError, decode, plain
from attnscope.core.errors import RefusalError
from attnscope.core.files import cache_folder as all_caches
from attnscope.core.files import write_atomically
from attnscope.core.progress import Advance, silent
from attnscope.core.ranges import Positive, Several, Share, Size

KNOWN_WIDTHS = "known_widths.json"
REVISION = 1
"""Increase this when a construction or the certificate changes, for tools/measure_capacity.py --fresh.
0: certified by one evaluation; 1: certified for rounding in any order of summation."""
WIDEST = 1000  # times n: no search goes to a larger width


@dataclass(frozen=True)
class Point:
    """Everything that a measurement depends on, except the version of the package."""

    method: str
    n: Several
    k: Several
    dtype: str
    ratio_error: Positive
    leak: Share
    seed: int


@dataclass(frozen=True)
class Measurement:
    """A measured width `d`, or None if none was found. `cut_short` says that the time limit ended the search."""

    point: Point
    d: Several | None
    max_logit: Size | None
    seconds: Size
    cut_short: bool = False
    refused: str = ""
    revision: int = 0

    def to_json(self) -> dict[str, Any]:
        data = asdict(self)
        return {**data.pop("point"), **data}

    @classmethod
    def from_json(cls, data: Any) -> Measurement:
        """Decode a file. Raise a `FieldError` for impossible numbers, because anyone can write to the cache."""
        if not isinstance(data, Mapping):
            raise FieldError("a measurement is needed")
        names = Point.__dataclass_fields__.keys()
        point = {name: value for name, value in data.items() if name in names}
        rest = {name: value for name, value in data.items() if name not in names}
        read: Measurement = decode(cls, {**rest, "point": point})
        if wrong := read.impossible():
            raise FieldError(f"{wrong} cannot be measured")
        return read

    def impossible(self) -> str:
        """Return the first impossible number in words, or "".

        A width comes with a logit, and a refused measurement has neither.
        """
        if not (math.isfinite(self.seconds) and self.seconds >= 0):
            return f"seconds = {self.seconds}"
        if (self.d is None) != (self.max_logit is None) or (self.d is not None and self.refused):
            return f"d = {self.d} with max_logit = {self.max_logit} and refused = {self.refused!r}"
        if self.d is not None and not 1 <= self.d <= WIDEST * self.point.n:
            return f"d = {self.d}"
        if self.max_logit is not None and not math.isfinite(self.max_logit):
            return f"max_logit = {self.max_logit}"
        return ""


def measure(point: Point, seconds: float, advance: Advance = silent) -> Measurement:
    """Search for the smallest width, for at most about `seconds`."""
    from attnscope.commands.compile.search import OutOfTimeError, SearchBudget, narrowest_by
    from attnscope.core.registry import constructions
    from attnscope.heads.accuracy import checked_accuracy
    from attnscope.heads.generate import generate

    start = time.process_time()
    construction = constructions()[point.method]
    pattern = generate("union_of_permutations", point.n, point.k, seed=point.seed)
    accuracy = checked_accuracy(point.ratio_error, point.leak, point.dtype)
    try:
        best = narrowest_by(
            construction, pattern, accuracy, seed=point.seed, budget=SearchBudget(seconds), advance=advance
        )
    except RefusalError as refusal:
        return Measurement(point, None, None, time.process_time() - start, refused=str(refusal), revision=REVISION)
    except OutOfTimeError:
        return Measurement(point, None, None, time.process_time() - start, cut_short=True, revision=REVISION)
    if best.interrupted:  # an unfinished search is not a measurement
        raise KeyboardInterrupt
    certificate = best.certificate
    return Measurement(
        point,
        certificate.d if certificate.reached else None,
        certificate.max_logit if certificate.reached else None,
        time.process_time() - start,
        cut_short=best.ending != "finished",
        revision=REVISION,
    )


class Shelf:
    """A store of measurements by point. With `fresh`, earlier ones are ignored, but new ones are still stored."""

    def __init__(self, folder: Path | None = None, *, fresh: bool = False) -> None:
        self.folder = cache_folder() if folder is None else folder
        self.known: dict[Point, Measurement] = {} if fresh else dict(known_widths())
        self.fresh = fresh
        self.kept = 0  # measurements that this shelf has written to disk

    def shipped(self, point: Point) -> bool:
        """Return whether the table of the package has this point; False if earlier measurements are ignored."""
        return not self.fresh and point in known_widths()

    def get(self, point: Point) -> Measurement | None:
        if point not in self.known and not self.fresh:
            # Damaged and impossible files are measured again (FieldError is a ValueError).
            with contextlib.suppress(OSError, ValueError, RecursionError):
                kept = Measurement.from_json(json.loads(self._path(point).read_text(encoding="utf-8")))
                if kept.point == point and not kept.cut_short:
                    self.known[point] = kept
        return self.known.get(point)

    def put(self, measurement: Measurement) -> None:
        """Store a measurement. If it was cut short, it is not written to disk."""
        self.known[measurement.point] = measurement
        if measurement.cut_short:
            return
        with contextlib.suppress(OSError, RefusalError):  # go on without a cache
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path(measurement.point), _json(measurement.to_json()))
            self.kept += 1

    def expected_seconds(self, point: Point) -> float:
        """Estimate the time from the nearest measurement of the same method (see `_work`).

        Without one, guess low: a search that takes longer is cut short, and its time is then known.
        """
        timed = [m for m in self.known.values() if m.point.method == point.method and m.seconds > 0]
        if not timed:
            return 1e-6 * _work(point)

        def distance(measurement: Measurement) -> float:
            other = measurement.point
            sizes, counts = abs(math.log(other.n / point.n)), abs(math.log(other.k / point.k))
            return sizes + counts / 2 + (other.dtype != point.dtype)

        nearest = min(timed, key=distance)
        return nearest.seconds * _work(point) / _work(nearest.point)

    def _path(self, point: Point) -> Path:
        from attnscope import __version__

        key = hashlib.sha256(_json({**asdict(point), "attnscope": __version__})).hexdigest()
        return self.folder / f"{key[:32]}.json"


def _work(point: Point) -> float:
    """Return the expected time up to a factor: pairs of tokens times entries of a row, plus a start-up cost."""
    return float((point.n**2 + 512**2) * (point.k + 2))


def cache_folder() -> Path:
    """Return the folder of stored measurements."""
    return all_caches() / "capacity"


@cache
def known_widths() -> dict[Point, Measurement]:
    """Return the measurements that ship with the package."""
    text = (files("attnscope.commands.capacity") / KNOWN_WIDTHS).read_text(encoding="utf-8")
    return {measured.point: measured for measured in map(Measurement.from_json, json.loads(text)["measurements"])}


def known_widths_json(measurements: Iterable[Measurement]) -> bytes:
    """Return the file that ships with the package: one line for each measurement, in order."""
    from attnscope import __version__

    ordered = sorted(measurements, key=lambda measured: tuple(asdict(measured.point).values()))
    lines = [_json(measured.to_json()).decode() for measured in ordered]
    head = f'{{"attnscope": "{__version__}", "pattern": "union_of_permutations", "measurements": [\n'
    return (head + ",\n".join(lines) + "\n]}\n").encode()


def _json(data: Mapping[str, Any]) -> bytes:
    return json.dumps(plain(data), sort_keys=True, allow_nan=False).encode()
