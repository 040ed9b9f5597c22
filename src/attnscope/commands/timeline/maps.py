"""Maps of blocks and steps for the page: packed numbers for the script, and an SVG for readers without script.

Every number is stored in one byte, in steps of 1/250 of the (possibly logarithmic) colour scale, and deflated. Looks
are thinned (`commands/timeline/read.py`) until a page of all measures stays below two megabytes.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnscope.commands.scan.words import site_title
from attnscope.commands.timeline.read import Columns
from attnscope.commands.timeline.record import Key, Timeline
from attnscope.commands.timeline.reduce import card_of, of_heads, worry
from attnscope.commands.timeline.step_curves import layer_title, reach
from attnscope.commands.timeline.words import title_of
from attnscope.core.card import Card
from attnscope.core.words import numeral
from attnscope.reports.colours import BROKEN, MISSING, STEPS, Scale, scale, strokes

BUDGET = 900_000  # bytes of codes on a page before compression; at worst 1.2 MB in base64
MOST = 400  # columns that a screen can tell apart
FEWEST = 40
SMALL = 120  # columns of a small map
AWAY = 10  # factor above the card's alarm from which the colour scale is logarithmic
LEVELS, NO_NUMBER, ABSENT = 250, 254, 255  # codes 0 to 250 are numbers, then "not finite", "not measured"


@dataclass(frozen=True)
class StepMap:
    """One measure at one site, in all runs: `numbers` [columns, layers, heads] of each run, thinned."""

    key: Key
    card: Card
    scale: Scale
    runs: tuple[Timeline, ...]
    columns: tuple[Columns, ...]
    numbers: tuple[np.ndarray, ...]

    @property
    def title(self) -> str:
        return title_of(self.card, self.key)

    @property
    def place(self) -> str:
        words = site_title(self.key[2], self.key[3], alone=len(self.runs[0].header.stacks) < 2)
        return f"{words}, inside blocks" if self.key[3] == "middle" else words

    @property
    def rows_of(self) -> str:
        return worry(self.card)

    @property
    def many(self) -> bool:
        """Whether there is a number for each head."""
        return any(one.ndim == 3 for one in self.numbers)

    @property
    def ramp(self) -> str:
        return "d" if self.scale.diverging else "q"

    def codes(self, numbers: np.ndarray) -> np.ndarray:
        share = self.scale.share(numbers)
        known = np.isfinite(numbers)
        code = np.where(known, np.rint(np.where(known, share, 0.0) * LEVELS), ABSENT)
        there = known.any(axis=0, keepdims=True) & known.reshape(len(known), -1).any(axis=1).reshape(
            -1, *[1] * (numbers.ndim - 1)
        )
        return np.where(~known & there, NO_NUMBER, code).astype(np.uint8)

    def to_json(self) -> dict[str, Any]:
        alarm = self.card.alarm if self.key[1] == self.card.parts[0] else None
        return {
            "measure": self.key[0],
            "title": self.title,
            "place": self.place,
            "stack": self.key[2],
            "site": self.key[3],
            "unit": self.card.unit,
            "summary": self.card.summary,
            "rows": layer_title(self.card, self.key),
            "rowsOf": self.rows_of,
            "low": self.scale.low,
            "high": self.scale.high,
            "log": self.scale.log,
            "ramp": self.ramp,
            "why": self.scale.why,
            "alarm": alarm.threshold if alarm else None,
            "worry": "above" if alarm and alarm.relation == ">" else "below",
            "runs": [
                {
                    "layers": int(numbers.shape[1]),
                    "heads": int(numbers.shape[2]) if numbers.ndim == 3 else 0,
                    "packed": base64.b64encode(zlib.compress(_by_place(self.codes(numbers)), 9)).decode(),
                }
                for numbers in self.numbers
            ],
        }

    def drawings(self) -> tuple[str, ...]:
        """Return the SVG of each run: blocks downwards, steps to the right."""
        first = min(int(run.steps[0]) for run in self.runs if run.looks)
        last = max(int(run.steps[-1]) for run in self.runs if run.looks)
        return tuple(
            self._drawing(run, columns, numbers, first, last)
            for run, columns, numbers in zip(self.runs, self.columns, self.numbers, strict=True)
        )

    def _drawing(self, run: Timeline, columns: Columns, numbers: np.ndarray, first: int, last: int) -> str:
        again = Columns.of(len(columns), SMALL)
        grid = again.thin(of_heads(numbers, self.rows_of))
        codes = self.codes(grid).astype(int)
        steps = np.where(
            codes <= LEVELS, np.rint(codes / LEVELS * (STEPS - 1)), np.where(codes == NO_NUMBER, BROKEN, MISSING)
        )
        starts, ends = reach(run.steps, columns.begins[again.begins])
        wide = max(last - first, 1)
        at = np.rint(1000 * (np.append(starts, ends[-1:]) - first) / wide).astype(int)
        return strokes(steps.astype(int), self.ramp, at)


def step_maps(timeline: Timeline) -> tuple[StepMap, ...]:
    """Return a map of every measure with a finite number, in the order of the header."""
    runs = timeline.runs
    keys = list(dict.fromkeys(key for run in runs for key in run.keys))
    whole = {key: tuple(run.numbers(key) for run in runs) for key in keys}
    places = sum(int(np.prod(one.shape[1:])) for numbers in whole.values() for one in numbers)
    most = int(np.clip(BUDGET // max(places, 1), FEWEST, MOST))
    columns = tuple(Columns.of(len(run.looks), most) for run in runs)
    found = []
    for key, numbers in whole.items():
        seen = np.concatenate([one.ravel() for one in numbers])
        if np.isfinite(seen).any():
            card = card_of(timeline, key)
            thin = tuple(each.thin(one) for each, one in zip(columns, numbers, strict=True))
            found.append(StepMap(key, card, _spanned(seen, card), runs, columns, thin))
    return tuple(found)


def _spanned(seen: np.ndarray, card: Card) -> Scale:
    """Return the ends of the colour scale; it is logarithmic if numbers go far past the alarm."""
    top = float(seen[np.isfinite(seen)].max())
    if card.log or card.alarm is None or card.alarm.relation != ">" or top <= AWAY * card.alarm.threshold:
        return scale(seen, card)
    low = card.alarm.threshold / 100
    why = f"logarithmically, because numbers go far past the alarm at {numeral(card.alarm.threshold)}; numbers below"
    return Scale(low, top, f"{why} {numeral(low)} are drawn as {numeral(low)}", log=True)


def thinning(maps: tuple[StepMap, ...]) -> tuple[str, ...]:
    """Return sentences on how looks were thinned and on the precision of the numbers under the pointer."""
    if not maps:
        return ()
    words = [each.words(len(run.looks)) for run, each in zip(maps[0].runs, maps[0].columns, strict=True)]
    exact = (
        f"Numbers under the pointer are rounded to {LEVELS} steps of the colour scale; the run folder has six figures."
    )
    return (*dict.fromkeys(filter(None, words)), exact)


def _by_place(codes: np.ndarray) -> bytes:
    """Return the codes ordered by place, then by step, which compresses well."""
    return np.ascontiguousarray(np.moveaxis(codes, 0, -1)).tobytes()
