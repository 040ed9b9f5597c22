"""The record of a trial: the answers of the model after single words of its input were replaced.

    found.trial.before                       the answer to the input as it is
    found.trial.words[0].word                the word that moved the answer most
    found.trial.words[0].after               the median answer after it was replaced
    found.trial.words[0].replacements        what was put in its place, and the answer with each

In a picture or a sound, a group of patches or moments takes the place of a word.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from attnscope.core.ranges import Correlation, Count, Finite, Index, Share

LEAST_PROBABILITY = 1e-12
MOVED = 0.1  # an answer within this share of itself did not move
NAMED = 2  # words that a verdict names at most
CLOSE = 0.1  # share of the largest effect from which a second word is named too


Unit = Literal["probability", "number"]


def scaled(answer: float, unit: Unit) -> float:
    """Return an answer on the scale of effects: the logarithm of a probability, and any other number itself."""
    return math.log(max(answer, LEAST_PROBABILITY)) if unit == "probability" else answer


@dataclass(frozen=True)
class Replacement:
    """One replacement of a word, and the answer with it."""

    text: str
    answer: Finite
    fit: Share  # 1 if the whole text is as likely with it as without it; smaller if it is less likely


@dataclass(frozen=True)
class Tried:
    """A word that was replaced, or two words at once. `tokens` are their places in the input of this name."""

    input: str
    tokens: tuple[Index, ...]
    word: str
    replacements: tuple[Replacement, ...]
    effect: Finite  # the mean fall of the answer (of its logarithm, for probabilities), times the fit

    @property
    def after(self) -> float:
        """The median answer, each replacement weighted by its fit. Of two medians it is the larger one.

        A median needs most replacements: a single one may bring evidence of its own for another answer.
        """
        ranked = sorted(self.replacements, key=lambda one: one.answer)
        half = math.fsum(one.fit for one in ranked) / 2
        sums = accumulate(one.fit for one in ranked)
        return next((one.answer for one, held in zip(ranked, sums, strict=True) if held > half), ranked[-1].answer)

    @property
    def low(self) -> float:
        return min(one.answer for one in self.replacements)

    @property
    def high(self) -> float:
        return max(one.answer for one in self.replacements)


@dataclass(frozen=True)
class Trial:
    """What replacing words did to the answer. Words are sorted by their effect, largest first."""

    unit: Unit  # of the answer
    before: Finite
    words: tuple[Tried, ...]
    asking: Tried | None = None  # the token at which the answer is read: it asks, so it is listed apart
    pairs: tuple[Tried, ...] = ()  # tried if no single word moved the answer
    agreement: tuple[tuple[str, Correlation], ...] = ()  # rank correlation of each method with the effects of words
    inputs: Count = 0  # how many inputs the model ran on

    def moved(self, tried: Tried) -> bool:
        """Return whether the answer falls by more than a tenth of itself, in the median of the replacements."""
        return tried.after < self.before - MOVED * abs(self.before)

    @property
    def deciding(self) -> tuple[Tried, ...]:
        """The words that moved the answer, largest effect first."""
        return tuple(word for word in self.words if self.moved(word))

    @property
    def named(self) -> tuple[Tried, ...]:
        """The words that a verdict names: the one with the largest effect, and the next if it has a tenth of it."""
        return tuple(word for word in self.deciding[:NAMED] if word.effect >= CLOSE * self.deciding[0].effect)
