"""What every text gave: the means of one arm's measures over the sequences of each text, at every place.

A survey sums over all sequences, and what one text had to do with its numbers is gone. Whether other text would have
made a finding is asked of texts, so a treatment keeps their means: for measures that findings read, and no others.

    seen = Sequences(texts)
    scan(model, batches, each=seen)
    seen.by_text(survey.cards).survey_of(survey, 3)     the survey as it would be if there were text 3 alone
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnscope.core.card import Card
from attnscope.core.registry import findings
from attnscope.records.survey.cell import Key
from attnscope.records.survey.survey import Survey
from attnscope.stats.moments import Moments
from attnscope.stats.plain import floats_from_json, floats_to_json


@dataclass(frozen=True, eq=False)
class ByText:
    means: dict[Key, NDArray[np.float64]]  # [texts] or [texts, heads]; NaN where a text has no number

    @property
    def texts(self) -> int:
        return len(next(iter(self.means.values()), ()))

    def survey_of(self, whole: Survey, text: int, measures: Sequence[str] | None = None) -> Survey:
        """`whole` with the means of one text for its own; lengths, labels and weights stay those of the whole, so that
        every text is held to the same bar. Only `measures`, if they are named."""
        wanted = {name: card for name, card in whole.cards.items() if measures is None or name in measures}
        cells = {
            key: replace(cell, moments=Moments.of(self.means[key][text][None])) if key in self.means else cell
            for key, cell in whole.cells.items()
            if key.measure in wanted
        }
        return replace(whole, cards=wanted, cells=cells)

    def covers(self, measures: Sequence[str]) -> bool:
        return any(key.measure in measures for key in self.means)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ByText)
            and self.means.keys() == other.means.keys()
            and all(np.array_equal(one, other.means[key], equal_nan=True) for key, one in self.means.items())
        )

    def to_json(self) -> list[Any]:
        return [[list(key), floats_to_json(one)] for key, one in sorted(self.means.items())]

    @classmethod
    def from_json(cls, data: Any) -> ByText:
        means = {}
        for place, given in data:
            measure, part, stack, site, layer = place
            rows = np.asarray(given, dtype=object).shape
            means[Key(str(measure), str(part), str(stack), str(site), int(layer))] = floats_from_json(given, rows)
        if len({len(one) for one in means.values()}) > 1:
            raise ValueError("not every place has a mean of every text")
        return cls(means)


@dataclass
class Sequences:
    """Listens to a scan; `texts` says which text each sequence was cut from, by its number."""

    texts: Sequence[int]
    _sums: dict[Key, NDArray[np.float64]] = field(default_factory=dict)
    _counts: dict[Key, NDArray[np.int64]] = field(default_factory=dict)

    def __call__(self, key: Key, values: NDArray[np.float64], samples: NDArray[np.int64]) -> None:
        names = {text: place for place, text in enumerate(dict.fromkeys(sorted(self.texts)))}
        shape = (len(names), *values.shape[1:])
        sums = self._sums.setdefault(key, np.zeros(shape))
        counts = self._counts.setdefault(key, np.zeros(shape, dtype=np.int64))
        for value, sample in zip(values, samples, strict=True):
            finite = np.isfinite(value)
            place = names[self.texts[int(sample)]]
            sums[place] += np.where(finite, value, 0.0)
            counts[place] += finite

    def by_text(self, cards: Mapping[str, Card]) -> ByText:
        """Of what findings read: by name, or as the number that a card's own alarm watches."""
        named = {measure for kind in findings().values() for measure in kind.reads}
        read = [key for key in self._sums if key.measure in named or cards[key.measure].alarm is not None]
        with np.errstate(invalid="ignore", divide="ignore"):
            return ByText({key: np.asarray(self._sums[key] / self._counts[key]) for key in read})
