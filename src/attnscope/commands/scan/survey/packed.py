"""Pack a survey into a few arrays, so that thousands of shards can be written, read and added fast.

A cell holds Python integers and dictionaries, which take a second to read for 30 blocks of 9 heads. Here the cells of
all places are concatenated, one row for each head ("number"), and surveys are added as arrays. Nothing is lost:
`unpack(pack(survey)) == survey`, to the last bit.

An exact sum is s * sum_i limb_i 2^(32 (low + i)), with s its sign and limbs below 2^32. The limbs of 2^31 shards can be
added in int64 without a carry, so sums of shards are exact in any order. Measures of weights, which count once, stay
cells.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from attnscope.commands.scan.survey.cell import Cell, Key
from attnscope.commands.scan.survey.survey import Survey
from attnscope.stats.moments import Moments, integers
from attnscope.stats.peak import LABEL_BITS, NOWHERE, OFFSET, Peak, Tally
from attnscope.stats.sketch import QuantileSketch

LIMB = 32
SUMS = ("total", "squares")
SKETCH = "sketch"


@dataclass(frozen=True)
class Layout:
    """For each cell: its key, its heads (None: one number), the labels of its peak and of its tallies."""

    cells: tuple[tuple[Key, int | None, tuple[str, ...], tuple[str, ...]], ...]

    @classmethod
    def of(cls, cells: Mapping[Key, Cell]) -> Layout:
        return cls(
            tuple(
                (key, cell.shape[0] if cell.shape else None, tuple(sorted(cell.peak.where)), tuple(cell.tallies))
                for key, cell in sorted(cells.items())
            )
        )

    def to_bytes(self) -> bytes:
        return json.dumps(self.cells, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Layout:
        cells = []
        for (measure, part, stack, site, layer), heads, peak, tallies in json.loads(data):
            key = Key(str(measure), str(part), str(stack), str(site), int(layer))
            cells.append((key, None if heads is None else int(heads), tuple(peak), tuple(tallies)))
        return cls(tuple(cells))

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(1 if heads is None else heads for _, heads, _, _ in self.cells)

    @property
    def numbers(self) -> int:
        return sum(self.sizes)

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(sorted({name for _, _, peak, _ in self.cells for name in peak}))

    @property
    def tallies(self) -> tuple[str, ...]:
        return tuple(sorted({name for _, _, _, names in self.cells for name in names}))


Arrays = dict[str, NDArray[Any]]


def pack(cells: Mapping[Key, Cell]) -> tuple[Layout, Arrays]:
    """Return the cells as arrays."""
    layout = Layout.of(cells)
    each = [cells[key] for key, *_ in layout.cells]
    arrays: Arrays = {
        "count": _row([cell.moments.count for cell in each], np.int64),
        "nonfinite": _row([cell.moments.nonfinite for cell in each], np.int64),
        "minimum": _row([cell.moments.minimum for cell in each], np.float64),
        "maximum": _row([cell.moments.maximum for cell in each], np.float64),
        "peak": _row([cell.peak.value for cell in each], np.float64),
    }
    for name in layout.labels:
        labels = [cell.peak.where.get(name, np.full(cell.shape, NOWHERE, np.int64)) for cell in each]
        arrays[f"peak.{name}"] = _row(labels, np.int64)
    for name in SUMS:
        sums = [int(number) for cell in each for number in getattr(cell.moments, name).flat]
        arrays[f"{name}.limbs"], arrays[f"{name}.low"] = _limbs(sums)
    arrays |= _labelled(SKETCH, [cell.sketch.tally for cell in each], layout.sizes)
    for name in layout.tallies:
        tallies = [cell.tallies.get(name) or Tally.empty(cell.shape) for cell in each]
        arrays |= _labelled(f"tally.{name}", tallies, layout.sizes)
    return layout, arrays


def unpack(layout: Layout, arrays: Mapping[str, NDArray[Any]]) -> dict[Key, Cell]:
    """Invert `pack`. Limbs may be sums over many shards, without carries."""
    sums = {name: whole_numbers(arrays[f"{name}.limbs"], arrays[f"{name}.low"]) for name in SUMS}
    codes = {name: coded(arrays, name) for name in (SKETCH, *(f"tally.{label}" for label in layout.tallies))}
    cells: dict[Key, Cell] = {}
    start = 0
    for (key, heads, peak, tallies), size in zip(layout.cells, layout.sizes, strict=True):
        shape = () if heads is None else (heads,)
        here = slice(start, start + size)

        def part(name: str, shape: tuple[int, ...] = shape, here: slice = here) -> NDArray[Any]:
            return np.array(arrays[name][here]).reshape(shape)

        moments = Moments(
            count=part("count"),
            nonfinite=part("nonfinite"),
            total=integers(sums["total"][here], shape),
            squares=integers(sums["squares"][here], shape),
            minimum=part("minimum"),
            maximum=part("maximum"),
        )
        cells[key] = Cell(
            moments=moments,
            sketch=QuantileSketch(_tally(codes[SKETCH], start, size, shape)),
            peak=Peak(part("peak"), {name: part(f"peak.{name}") for name in peak}),
            tallies={name: _tally(codes[f"tally.{name}"], start, size, shape) for name in tallies},
        )
        start += size
    return cells


def packed(survey: Survey) -> tuple[Layout, Arrays, dict[Key, Cell]]:
    """Return the layout and arrays of all cells except cells of weights, and the cells of weights."""
    weights = {key: cell for key, cell in survey.cells.items() if survey.cards[key.measure].scope == "weights"}
    return *pack({key: cell for key, cell in survey.cells.items() if key not in weights}), weights


def coded(arrays: Mapping[str, NDArray[Any]], name: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return sorted codes, each of which encodes a number and a label, and their counts."""
    lengths = arrays[f"{name}.lengths"]
    number = np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
    codes = (number << LABEL_BITS) + (arrays[f"{name}.labels"].astype(np.int64) + OFFSET)
    return codes, arrays[f"{name}.counts"].astype(np.int64)


def uncoded(codes: NDArray[np.int64], counts: NDArray[np.int64], numbers: int, name: str) -> Arrays:
    """Invert `coded`."""
    labels = (codes & ((1 << LABEL_BITS) - 1)) - OFFSET
    lengths = np.bincount(codes >> LABEL_BITS, minlength=numbers)
    return {
        f"{name}.lengths": lengths.astype(np.int32),
        f"{name}.labels": _narrow(labels),
        f"{name}.counts": _narrow(counts),
    }


def whole_numbers(limbs: Int[np.ndarray, "number limb"], low: Int[np.ndarray, " number"]) -> list[int]:
    """Return sum_i limb_i 2^(32 (low + i)). Limbs may be sums over shards and may be negative."""
    return [
        sum(limb << LIMB * (first + i) for i, limb in enumerate(row) if limb)
        for row, first in zip(limbs.tolist(), low.tolist(), strict=True)
    ]


def _limbs(numbers: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int16]]:
    low = [((n & -n).bit_length() - 1) // LIMB if n else 0 for n in numbers]
    kept = [abs(n) >> LIMB * first for n, first in zip(numbers, low, strict=True)]
    longest = max((-(-n.bit_length() // LIMB) for n in kept), default=0)
    data = b"".join(n.to_bytes(4 * longest, "little") for n in kept)
    limbs = np.frombuffer(data, "<u4").astype(np.int64).reshape(len(kept), longest)
    signs = np.array([-1 if n < 0 else 1 for n in numbers], np.int64).reshape(-1, 1)
    return limbs * signs, np.array(low, np.int16)


def _row(parts: Sequence[NDArray[Any]], kind: Any) -> NDArray[Any]:
    return np.concatenate([np.asarray(part, kind).reshape(-1) for part in parts]) if parts else np.empty(0, kind)


def _labelled(name: str, tallies: Sequence[Tally], sizes: Sequence[int]) -> Arrays:
    starts = np.cumsum([0, *sizes])[:-1]
    codes = [tally.codes + (int(start) << LABEL_BITS) for tally, start in zip(tallies, starts, strict=True)]
    return uncoded(_row(codes, np.int64), _row([tally.counts for tally in tallies], np.int64), sum(sizes), name)


def _tally(codes: tuple[NDArray[np.int64], NDArray[np.int64]], start: int, size: int, shape: tuple[int, ...]) -> Tally:
    first, last = np.searchsorted(codes[0], [start << LABEL_BITS, (start + size) << LABEL_BITS])
    return Tally(shape, codes[0][first:last] - (start << LABEL_BITS), codes[1][first:last].copy())


def _narrow(values: NDArray[np.int64]) -> NDArray[Any]:
    """Use the smallest integer type: most labels are small and most counts are 1."""
    most = max(int(np.abs(values).max(initial=0)), 1)
    return values.astype(np.int16 if most < 2**15 else np.int32 if most < 2**31 else np.int64)
