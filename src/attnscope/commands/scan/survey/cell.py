"""A cell: the statistics of one measure at one place, for all heads at once. Cells merge exactly."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from attnscope.core.card import Card
from attnscope.stats.moments import Moments, Shape, whole_from_json
from attnscope.stats.peak import Peak, Tally
from attnscope.stats.sketch import QuantileSketch


class Key(NamedTuple):
    """The place of a cell: `Key("entropy", "value", "decoder", "self", 3)`.

    For the stream, layer b is the state that enters block b. With B blocks, layer B is the state after the last block.
    """

    measure: str
    part: str
    stack: str
    site: str
    layer: int


@dataclass(frozen=True)
class Cell:
    """Statistics over sequences, of shape `()` (stream) or `(heads,)`."""

    moments: Moments
    sketch: QuantileSketch
    peak: Peak
    tallies: dict[str, Tally] = field(default_factory=dict)  # counts of the peak's token, channel or key

    @classmethod
    def empty(cls, shape: Shape = ()) -> Cell:
        return cls.of(np.empty((0, *shape)), {}, None)

    @classmethod
    def of(
        cls,
        values: Float[np.ndarray, " batch *shape"],
        where: Mapping[str, Int[np.ndarray, " batch *shape"]],
        samples: Int[np.ndarray, " batch"] | None,
    ) -> Cell:
        """Build a cell from one row per sequence. Labels of values that are not finite are ignored."""
        finite = np.isfinite(values)
        labels = dict(where)
        if samples is not None:
            column = samples.reshape(-1, *[1] * (values.ndim - 1))
            labels["sample"] = np.broadcast_to(column, values.shape)
        return cls(
            moments=Moments.of(values),
            sketch=QuantileSketch.of(values),
            peak=Peak.of(values, labels),
            tallies={name: Tally.of(label, keep=finite) for name, label in sorted(where.items())},
        )

    @classmethod
    def of_many(
        cls,
        values: Sequence[Float[np.ndarray, " batch *shape"]],
        where: Sequence[Mapping[str, Int[np.ndarray, " batch *shape"]]],
        samples: Int[np.ndarray, " batch"] | None,
    ) -> list[Cell]:
        """Build the cells of many places at once. All must have the same sequences, heads and labels."""
        labels = {name: np.stack([place[name] for place in where], axis=1) for name in where[0]}
        whole = cls.of(np.stack(values, axis=1), labels, samples)
        return [whole._part(number) for number in range(len(values))]

    def _part(self, number: int) -> Cell:
        """Return one entry along the first axis of every statistic."""
        return Cell(
            moments=self.moments.part(number),
            sketch=QuantileSketch(self.sketch.tally.part(number)),
            peak=self.peak.part(number),
            tallies={name: tally.part(number) for name, tally in self.tallies.items()},
        )

    @property
    def shape(self) -> Shape:
        return self.moments.shape

    def merge(self, other: Cell) -> Cell:
        if self.shape != other.shape:
            raise ValueError(f"cells of shape {self.shape} and {other.shape} do not merge")
        none = Tally.empty(self.shape)
        return Cell(
            moments=self.moments.merge(other.moments),
            sketch=self.sketch.merge(other.sketch),
            peak=self.peak.merge(other.peak),
            tallies={
                name: self.tallies.get(name, none).merge(other.tallies.get(name, none))
                for name in sorted({*self.tallies, *other.tallies})
            },
        )

    def quantile(self, share: float) -> NDArray[np.float64]:
        """Return a quantile within 0.8 % of the true one, and never outside the observed values."""
        quantile = self.sketch.quantile(share)
        return np.asarray(np.clip(quantile, self.moments.minimum, self.moments.maximum))

    def usual(self) -> list[dict[str, int] | None]:
        """Return the most common value of every label, per head; None without labels."""
        common = {name: tally.most_common() for name, tally in self.tallies.items()}
        rows = []
        for head in range(math.prod(self.shape)):
            row = {name: best[head][0] for name, best in common.items() if best[head] is not None}  # type: ignore[index]
            rows.append(row or None)
        return rows

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {
            "shape": list(self.shape),
            "moments": self.moments.to_json(),
            "sketch": self.sketch.to_json(),
            "peak": self.peak.to_json(),
        }
        if self.tallies:
            data["tallies"] = {name: tally.to_json() for name, tally in self.tallies.items()}
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Cell:
        shape = _shape(data)
        return cls(
            moments=Moments.from_json(data["moments"], shape),
            sketch=QuantileSketch.from_json(data["sketch"], shape),
            peak=Peak.from_json(data["peak"], shape),
            tallies={name: Tally.from_json(rows, shape) for name, rows in data.get("tallies", {}).items()},
        )


def _shape(data: Mapping[str, Any]) -> Shape:
    """Return the shape, checked against the numbers in the file before arrays are allocated."""
    shape = tuple(whole_from_json(data["shape"]).tolist())
    numbers = len(data["moments"]["total"])
    if len(shape) > 1 or any(n < 0 for n in shape) or numbers != math.prod(shape):
        raise ValueError(f"a cell of shape {list(shape)[:4]} does not hold {numbers} numbers")
    return shape


def join(card: Card, a: Cell, b: Cell) -> Cell:
    """Merge two cells of one place.

    Measures of weights do not depend on the corpus, so they count once, not once per shard. If two readings differ by
    rounding, the one whose JSON sorts last is kept, so the order of merging does not matter.
    """
    if card.scope != "weights":
        return a.merge(b)
    return a if a == b else max(a, b, key=lambda cell: str(cell.to_json()))
