"""The numbers of two surveys of the same tokens, by place in depth order.

Two models that read the same tokens have equal numbers up to their first difference. The order of places is that of the
computation: the stream that enters block 0, then for every block its attention, the stream after attention (`middle`),
what its MLP writes, and the stream that leaves it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from attnscope.commands.compare.differences import NARROW
from attnscope.commands.compare.losses import same_tokens
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.card import Card

ATTENTION, MIDDLE, MLP, END = range(4)  # stages of a block
EPSILONS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
_ROUNDINGS = 4  # units in the last place that rounding may explain
_SMALLEST = 1e-5  # statistics are summed in float32 whatever the precision of the model
_MOST = 20.0  # distance of numbers of which one is zero or missing
_DUST = 1e-6  # share of the largest number of a measure below which numbers count as zero
_SIGNED = 0.1  # share of the largest number of a measure that is the least scale of numbers of both signs
RATE = "rate"  # a share of sequences beyond a threshold: rounding can move it by a whole sequence
WRITE = "write"  # of a half of a block, from the trial


class Place(NamedTuple):
    """A stage of a block of a stack, in depth order. Block -1 is the embedding."""

    stack: int
    block: int
    stage: int


@dataclass(frozen=True)
class Reading:
    """One number on both sides. `apart` is their distance: 0 if equal, 1 is a factor of e or a whole share."""

    place: Place
    measure: str
    part: str
    site: str
    layer: int
    head: int | None
    before: float
    after: float
    apart: float


def paired(first: Survey, other: Survey) -> bool:
    """Return whether both surveys are of the same tokens, read by models with the same blocks and heads."""
    if _build(first) != _build(other):
        return False
    if first.trial is not None and other.trial is not None and not same_tokens(first.trial, other.trial):
        return False
    known = _read(first), _read(other)
    shared = first.sequences.keys() & other.sequences.keys()
    return known[0] == known[1] and all(first.sequences[n] == other.sequences[n] for n in shared)


def _build(survey: Survey) -> list[tuple[object, ...]]:
    stacks = survey.provenance.get("model", {}).get("stacks", [])
    return [(stack.get("name"), stack.get("layers"), stack.get("heads")) for stack in stacks]


def _read(survey: Survey) -> tuple[Any, ...]:
    """Return what decides which tokens were read; the text alone does not, because tokenizers differ."""
    corpus, bos = (survey.provenance.get(name) or {} for name in ("corpus", "bos"))
    stacks = survey.provenance.get("model", {}).get("stacks", [])
    text = [corpus.get(name) for name in ("hash", "sequences", "tokens", "window")]
    return (*text, bos.get("begins"), survey.provenance.get("seed"), [stack.get("tokens") for stack in stacks])


def tolerance(first: Survey, other: Survey) -> float:
    """Return the distance that rounding in the coarser of both precisions can explain."""
    names = [survey.provenance.get("dtype") for survey in (first, other)]
    coarser = max(EPSILONS.get(str(name), EPSILONS["float32"]) for name in names)
    return max(_SMALLEST, _ROUNDINGS * coarser)


def readings(first: Survey, other: Survey) -> list[Reading]:
    """Return every number that both surveys have, in depth order. Equal NaNs are equal."""
    stacks = {name: number for number, name in enumerate(first.stacks)}
    found = []
    dust = _dust(first, other)
    for key, old in first.cells.items():
        new = other.cells.get(key)
        if new is None or new.shape != old.shape or key.stack not in stacks or key.part == RATE:
            continue
        card = first.cards[key.measure]
        place = _place(stacks[key.stack], key.site, key.layer)
        broken = np.ravel(old.moments.nonfinite != new.moments.nonfinite).tolist()
        means = zip(np.ravel(old.moments.mean).tolist(), np.ravel(new.moments.mean).tolist(), broken, strict=True)
        for head, (a, b, lost) in enumerate(means):
            apart = _MOST if lost else distance(card, a, b, dust[key[:2]])
            at = key.site, key.layer, head if old.shape else None
            found.append(Reading(place, key.measure, key.part, *at, a, b, apart))
    return sorted([*found, *_writes(first, other, stacks)], key=lambda each: each.place)


def _place(stack: int, site: str, layer: int) -> Place:
    if site == "stream":
        return Place(stack, layer - 1, END)
    return Place(stack, layer, MIDDLE if site == "middle" else ATTENTION)


def _writes(first: Survey, other: Survey, stacks: Mapping[str, int]) -> list[Reading]:
    """Return the sizes of what each half of a block writes, from trials of the same tokens."""
    one, two = first.trial, other.trial
    if one is None or two is None or not same_tokens(one, two):
        return []
    after = {(part.stack, part.layer, part.half): part.write for part in two.parts}
    found = []
    for part in one.parts:
        write = after.get((part.stack, part.layer, part.half))
        if write is None or part.stack not in stacks:
            continue
        stage = ATTENTION if part.half == "attention" else MLP
        apart = _log_distance(part.write, write, _DUST)
        place = Place(stacks[part.stack], part.layer, stage)
        found.append(Reading(place, WRITE, part.half, part.half, part.layer, None, part.write, write, apart))
    return found


def distance(card: Card, a: float, b: float, dust: float) -> float:
    """Return the distance of two numbers, the same in both directions.

    It is the difference for measures with a narrow range and for nats, |ln a/b| for sizes, and otherwise the relative
    difference.
    """
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    if not (math.isfinite(a) and math.isfinite(b)):
        return _MOST
    if card.high - card.low <= NARROW or card.unit == "nats":  # a ratio of entropies near 0 says nothing
        return abs(b - a)
    if card.low >= 0 and min(a, b) >= 0:
        return _log_distance(a, b, dust)
    return abs(b - a) / max(abs(a), abs(b), _SIGNED / _DUST * dust)


def _log_distance(a: float, b: float, dust: float) -> float:
    low, high = sorted((max(a, dust), max(b, dust)))
    return 0.0 if low == high else min(math.log(high / low), _MOST) if low > 0 else _MOST


def _dust(first: Survey, other: Survey) -> dict[tuple[str, ...], float]:
    largest: dict[tuple[str, ...], float] = {}
    for survey in (first, other):
        for key, cell in survey.cells.items():
            means = np.abs(cell.moments.mean)
            means = means[np.isfinite(means)]
            largest[key[:2]] = max(largest.get(key[:2], 0.0), float(means.max(initial=0.0)))
    return {name: _DUST * size for name, size in largest.items()}
