"""Where two models part: the first place at which numbers of the same tokens differ beyond rounding.

    found = parting(first, second)
    found.sentence         "Identical up to block 2; the MLP of block 3 writes 80x larger."
    found.layer, found.half, found.head

Places are walked in depth order (`places`). The first number that differs beyond the rounding of the coarser precision
names the block and the half, if everything before is equal to the bit, or at least ten times closer. Otherwise numbers
differ from the start (another precision, another training), and the place where the difference grows most is a hint:
in every series of numbers against depth, the distance in a block is divided by the largest distance before it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

from attnscope.commands.compare.losses import LossChange, exposures
from attnscope.commands.compare.places import (
    ATTENTION,
    MIDDLE,
    MLP,
    WRITE,
    Place,
    Reading,
    paired,
    readings,
    tolerance,
)
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.words import blocks, numeral, ranges

Half = Literal["embedding", "attention", "mlp", "output"]
Kind = Literal["same", "place", "start"]
_JUMP = 10.0  # how many times farther apart the first place must be than everything before it
_GROWS = 3.0  # the smallest growth that is told as a hint
_LEADING = 3  # series whose growth is averaged
_NOTICEABLE = 1.1  # factor on a write
_NOTABLE = 0.1  # the smallest distance that is told as a hint
_HEAD_WRITES = ("head_contribution", "ov_norm", "inactive_heads", "value_drain", "gate_mean")  # not patterns
_OF_ALL_HEADS = ("head_contribution", "head_overlap")  # numbers that depend on the other heads of the block


@dataclass(frozen=True)
class Parting:
    """Where two models part.

    `same`: no number differs beyond rounding. `place`: everything before this place is equal. `start`: numbers differ
    from the first place on, and `layer` is where the difference grows most, which is a hint; None if nowhere.
    """

    kind: Kind
    sentence: str
    stack: str = ""
    layer: int | None = None
    half: Half | None = None  # None: it is not known which half of the block
    head: int | None = None  # set if only one head differs
    survey: int = 1  # index in `Comparison.surveys`

    @property
    def hint(self) -> bool:
        return self.kind == "start"


def parting(first: Survey, other: Survey, loss: LossChange | None = None, survey: int = 1) -> Parting | None:
    """Return where two surveys of the same tokens part; None if they are not of the same tokens."""
    if not paired(first, other):
        return None
    found, limit = readings(first, other), tolerance(first, other)
    places = [(place, list(group)) for place, group in groupby(found, key=lambda each: each.place)]
    if not places:
        return None
    walk = _Walk(first, other, tuple(found), limit)
    sizes = [max(each.apart for each in group) for _, group in places]
    start = next((n for n, size in enumerate(sizes) if size > limit), None)
    if start is None:
        made = _after_all(loss, limit, exact=not any(sizes))
    elif places[start][0].block >= 0 and sizes[start] > _JUMP * max(sizes[:start], default=0.0) and start:
        made = walk.at(*places[start], exact=not any(sizes[:start]))
    else:
        made = walk.from_the_start(places[start][0])
    return replace(made, survey=survey)


def _after_all(loss: LossChange | None, limit: float, exact: bool) -> Parting:
    """Return the parting of models whose measured numbers are equal everywhere."""
    if loss is not None and loss.paired and abs(loss.difference) > limit * max(1.0, loss.before):
        words = "Identical in every block; the difference is after the last one, in the final norm or the output layer."
        return Parting("place", words, half="output")
    words = "Every number is the same." if exact else "No number differs by more than rounding."
    return Parting("same", words)


@dataclass(frozen=True)
class _Walk:
    first: Survey
    other: Survey
    found: tuple[Reading, ...]
    limit: float

    def at(self, place: Place, group: Sequence[Reading], exact: bool) -> Parting:
        """Return the parting at the first place that differs."""
        half = self._half(place)
        differing = [each for each in group if each.apart > self.limit]
        heads = sorted({each.head for each in differing if each.head is not None and each.measure not in _OF_ALL_HEADS})
        head = heads[0] if len(heads) == 1 and half == "attention" else None
        before = "Identical" if exact else "Equal up to rounding"
        upto = f"up to block {place.block - 1}" if place.block else "where the stream enters block 0"
        stack = self.first.stacks[place.stack]
        what = self._what(place, half, differing, head)
        words = f"{before} {upto}{self._of(place)}; {what}{self._more(place)}."
        return Parting("place", words, stack, place.block, half, head)

    def _more(self, place: Place) -> str:
        """Return later blocks whose weights differ too: measures of weights do not depend on what comes before."""
        weights = {name for name, card in self.first.cards.items() if card.scope == "weights"}
        apart = (each.place for each in self.found if each.measure in weights and each.apart > self.limit)
        later = {other.block for other in apart if other.stack == place.stack and other.block > place.block}
        return f"; attention weights also differ in {blocks(later)}" if later else ""

    def _of(self, place: Place) -> str:
        return f" of the {self.first.stacks[place.stack]}" if len(self.first.stacks) > 1 else ""

    def _half(self, place: Place) -> Half | None:
        if place.stage in (ATTENTION, MIDDLE):
            return "attention"
        if place.stage == MLP:
            return "mlp"
        # The stream after the block differs. The MLP is named only if attention, or the stream after it, was compared.
        stages = {each.place.stage for each in self.found if each.place[:2] == place[:2]}
        return "mlp" if MIDDLE in stages or {ATTENTION, MLP} <= stages else None

    def _what(self, place: Place, half: Half | None, differing: Sequence[Reading], head: int | None) -> str:
        """Return what differs most at a place, in words."""
        where = f"block {place.block}{self._of(place)}"
        if half == "attention" and (later := self._sees_later(place)):
            return f"the attention of {where} {later}"
        write = next(
            (
                each
                for each in self.found
                if each.measure == WRITE and each.place[:2] == place[:2] and each.part == half
            ),
            None,
        )
        others = (*_HEAD_WRITES, *_OF_ALL_HEADS)
        patterns = [each for each in differing if each.head is not None and each.measure not in others]
        if half == "attention" and patterns:
            telling = [each for each in patterns if each.measure == "entropy" and each.apart > _NOTABLE]
            top = max(telling or patterns, key=lambda each: each.apart)
            heads = sorted({each.head for each in patterns if each.head is not None})
            if head is not None:
                return f"head {head} of {where} attends elsewhere: {self._values(top)}"
            several = f"heads {ranges(heads)}" if len(heads) > 1 else f"head {heads[0]}"
            verb = "attend" if len(heads) > 1 else "attends"
            return f"{several} of {where} {verb} elsewhere, most head {top.head}: {self._values(top)}"
        subject = {"attention": "the attention of ", "mlp": "the MLP of "}.get(str(half), "") + where
        if write is not None and write.apart > self.limit and half is not None:
            return f"{subject} writes {times(write.before, write.after)}"
        top = max(differing, key=lambda each: each.apart)
        of_head = f" of head {top.head}" if top.head is not None else ""
        return f"{subject} writes something else: {self._values(top)}{of_head}"

    def _sees_later(self, place: Place) -> str:
        """Return `sees later tokens` if exactly one of the models does so, from this block on."""
        stack = self.first.stacks[place.stack]
        words = ("no longer sees later tokens", "sees later tokens")
        seen = [[each for each in exposures(side) if each.stack == stack] for side in (self.first, self.other)]
        if bool(seen[0]) != bool(seen[1]):
            start = (seen[0] or seen[1])[0].layer
            return words[bool(seen[1])] if start in (None, place.block) else ""
        causal = [_causal(side, stack) for side in (self.first, self.other)]
        return words[bool(causal[0])] if causal[0] != causal[1] and None not in causal else ""

    def _values(self, reading: Reading) -> str:
        """Return `attention entropy 1.2 → 3.4 nats`."""
        if reading.measure == WRITE:
            return f"size of the write {numeral(reading.before, 3)} → {numeral(reading.after, 3)}"
        card = self.first.cards[reading.measure]
        title = card.title if reading.part == "value" else f"{card.title} ({reading.part.replace('_', ' ')})"
        title = title[:1].lower() + title[1:] if title[1:2].islower() else title
        figures = (3, 4, 6)
        values = next(
            (pair for n in figures if len(set(pair := (numeral(reading.before, n), numeral(reading.after, n)))) == 2),
            (numeral(reading.before, 9), numeral(reading.after, 9)),
        )
        unit = f" {card.unit}" if card.unit in ("nats", "tokens", "keys") else ""
        return f"{title} {' → '.join(values)}{unit}"

    def from_the_start(self, place: Place) -> Parting:
        """Return the parting of models that differ from the first place on, with the largest growth as a hint."""
        dtypes = [str(side.provenance.get("dtype")) for side in (self.first, self.other)]
        why = f" (one is in {dtypes[0]}, the other in {dtypes[1]})" if dtypes[0] != dtypes[1] else ""
        says = (
            "All blocks differ, from the stream that enters block 0 on"
            if place.block < 0
            else f"Numbers differ from block {place.block} on"
        )
        said = f"{says}{self._of(place)}{why}."
        grown = self._growth()
        if grown is None:
            return Parting(
                "start",
                f"{said} The difference grows evenly: no block stands out.",
                self.first.stacks[place.stack],
                None,
                "embedding" if place.block < 0 else None,
            )
        there, factor, top = grown
        half = self._half(there)
        name = {"attention": "in the attention of", "mlp": "in the MLP of"}.get(str(half), "in")
        grows = f"{name} block {there.block}{self._of(there)}, {_factor(factor)} times"
        hint = f"A hint: it grows most {grows}: {self._values(top)}."
        return Parting("start", f"{said} {hint}", self.first.stacks[there.stack], there.block, half)

    def _growth(self) -> tuple[Place, float, Reading] | None:
        """Return the place where distances grow most over all places before it, how much, and the leading number."""
        series: dict[tuple[object, ...], dict[Place, list[Reading]]] = {}
        of_stream = [each for each in self.found if each.head is None]  # heads react to the stream that they read
        for each in of_stream or self.found:
            kind = (WRITE,) if each.measure == WRITE else (each.measure, each.part)
            series.setdefault((each.place.stack, *kind), {}).setdefault(each.place, []).append(each)
        growths: dict[Place, list[tuple[float, Reading]]] = {}
        for by_place in series.values():
            reached = 0.0
            for number, (place, group) in enumerate(sorted(by_place.items())):
                mean = math.fsum(each.apart for each in group) / len(group)
                if number and place.block >= 0 and mean > max(self.limit, _NOTABLE):
                    growth = mean / max(reached, self.limit)
                    growths.setdefault(place, []).append((growth, max(group, key=lambda each: each.apart)))
                reached = max(reached, mean)
        best: tuple[float, Place, Reading] | None = None
        for place, some in sorted(growths.items()):
            leading = sorted(some, key=lambda each: -each[0])[:_LEADING]
            factor = math.exp(math.fsum(math.log(growth) for growth, _ in leading) / len(leading))
            if factor >= _GROWS and (best is None or factor > best[0]):
                best = factor, place, leading[0][1]
        return None if best is None else (best[1], best[0], best[2])


def _causal(survey: Survey, stack: str) -> bool | None:
    for described in survey.provenance.get("model", {}).get("stacks", []):
        if described.get("name") == stack:
            return None if described.get("causal") is None else bool(described["causal"])
    return None


def _factor(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0") if value < 10 else f"{value:,.0f}"


def times(before: float, after: float) -> str:
    """Return `80x larger`, `3x smaller`, `nothing`, or `something else of the same size`."""
    if after == 0 or before == 0:
        return "nothing" if after == 0 else "where the first wrote nothing"
    ratio = after / before
    if ratio >= _NOTICEABLE:
        return f"{_factor(ratio)}x larger"
    return f"{_factor(1 / ratio)}x smaller" if ratio <= 1 / _NOTICEABLE else "something else of nearly the same size"
