"""The record of a trial: the answers of the model after single words of its input were replaced.

    found.trial.before                       the answer to the input as it is
    found.trial.words[0].word                the word that moved the answer most
    found.trial.words[0].after               the median answer after it was replaced
    found.trial.words[0].replacements        what was put in its place, and the answer with each

In a picture or a sound, a group of patches or moments takes the place of a word.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from attnscope.core.ranges import Correlation, Count, Finite, Index, Share

PIECE = "##"  # how WordPiece marks a token that continues a word
LEAST_PROBABILITY = 1e-12
MOVED = 0.1  # an answer that changes by a smaller share did not move
DECIDED = 1 / 3  # a word decided only if the answer falls by this share
FITTING, TAKEN = 0.5, 0.5  # fit of a replacement that can change the answer, and share of the answer that it may leave
LEAST_FIT = 0.2  # of the replacements of a pair
NEGLIGIBLE = 0.01  # probability
NAMED = 2  # words that a verdict names at most
SEVERAL = 2  # replacements that a word needs before it is said to have moved the answer
CLOSE = 0.1  # share of the largest effect from which a second word is named too


Unit = Literal["probability", "number"]
Chosen = Literal["", "similar", "likely", "lowering"]


def joined(tokens: Sequence[str]) -> str:
    """Return the tokens of one word as they are written: 'over', '##bear', '##ing' is 'overbearing'."""
    return "".join([*tokens[:1], *(token.removeprefix(PIECE) for token in tokens[1:])])


def scaled(answer: float, unit: Unit) -> float:
    """Return an answer on the scale of effects: the logarithm of a probability, and any other number itself."""
    return math.log(max(answer, LEAST_PROBABILITY)) if unit == "probability" else answer


@dataclass(frozen=True)
class Replacement:
    """One replacement of a word, and the answer with it."""

    text: str
    answer: Finite
    fit: Share  # 1 if the whole text is as likely with it as without it; smaller if it is less likely
    says: str = ""  # the token or class that is most likely with it, if that is another than before
    sure: Share = 0.0  # the probability of that token or class
    chosen: Chosen = ""  # why this replacement: similar to the word, likely in its place, or lowering by the gradient


def median(replacements: Sequence[Replacement]) -> float:
    """Return the median answer, each replacement weighted by its fit; of two medians the larger one.

    The median falls only if replacements with more than half of the weight lower the answer. A single replacement may
    be evidence for another answer by itself.
    """
    ranked = sorted(replacements, key=lambda one: one.answer)
    half = math.fsum(one.fit for one in ranked) / 2
    sums = accumulate(one.fit for one in ranked)
    return next((one.answer for one, held in zip(ranked, sums, strict=True) if held > half), ranked[-1].answer)


@dataclass(frozen=True)
class Tried:
    """A word that was replaced, or two words at once. `tokens` are their places in the input of this name."""

    input: str
    tokens: tuple[Index, ...]
    word: str
    replacements: tuple[Replacement, ...]
    effect: Finite  # the mean fall of the answer (of its logarithm, for probabilities), times the fit
    again: tuple[Replacement, ...] = ()  # further replacements, for the words with the largest effects
    control: Replacement | None = None  # the replacement that takes the answer away, in the place of another word

    @property
    def every(self) -> tuple[Replacement, ...]:
        return (*self.replacements, *self.again)

    @property
    def after(self) -> float:
        """The median answer of all replacements."""
        return median(self.every)

    @property
    def low(self) -> float:
        return min(one.answer for one in self.every)

    @property
    def high(self) -> float:
        return max(one.answer for one in self.every)


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
    fitted: bool = False  # whether fits were measured: the model predicts its text
    least: Share = 0.0  # the smallest change that counts, however small the answer is: for cosines

    def moved(self, tried: Tried) -> bool:
        """Return whether the answer falls by more than a tenth, in the median of several replacements."""
        return len(tried.every) >= SEVERAL and tried.after < self.before - self.notable

    def raised(self, tried: Tried) -> bool:
        """Return whether the answer rises by more than a tenth, in the median of several replacements."""
        return len(tried.every) >= SEVERAL and tried.after > self.before + self.notable

    def unmoved(self, tried: Tried) -> bool:
        """Return whether the answer does not fall by more than a tenth."""
        return tried.after >= self.before - self.notable

    @property
    def notable(self) -> float:
        """The smallest change of the answer that counts."""
        return max(MOVED * abs(self.before), self.least)

    @property
    def deciding(self) -> tuple[Tried, ...]:
        """The words that moved the answer, largest effect first."""
        return tuple(word for word in self.words if self.moved(word))

    def decides(self, tried: Tried) -> bool:
        """Return whether the median answer falls by a third: with all replacements, with those of each source, and
        with those that had no part in choosing the word. A word without the latter does not decide."""
        sources = {one.chosen for one in tried.every}
        by_source = [[one for one in tried.every if one.chosen == source] for source in sources]
        return bool(tried.again) and all(map(self.takes, (tried.every, tried.again, *by_source)))

    def takes(self, group: Sequence[Replacement]) -> bool:
        """Return whether the median answer falls by a third."""
        return median(group) <= self.before - max(DECIDED * abs(self.before), self.least)

    def pair_decides(self, pair: Tried) -> bool:
        """Return whether the answer falls by a third, with two fitting replacements or more, and by a third more than
        with the better of the two words alone."""
        alone = [word.after for word in self.words if set(word.tokens) <= set(pair.tokens)]
        fitting = [one for one in pair.every if one.fit >= LEAST_FIT]
        more = all(pair.after <= one - DECIDED * abs(one) for one in alone)
        return len(fitting) >= SEVERAL and self.takes(pair.every) and more

    def contrast(self, tried: Tried) -> Replacement | None:
        """Return the replacement with which a word can change the answer, or None.

        Number and gender matter in this way: most words like 'man' keep the answer, and 'men' and 'girls' change it. A
        single replacement may be a cause by itself, whatever word it takes the place of. So either two replacements are
        needed, or a control: in the place of another word, the same replacement leaves more than half of the answer. A
        control that leaves less speaks against any number of replacements.
        """
        taking = self.taking(tried)
        kept = None if tried.control is None else tried.control.answer > TAKEN * self.before
        return taking[0] if taking and (kept or (kept is None and len(taking) >= SEVERAL)) else None

    def taking(self, tried: Tried) -> list[Replacement]:
        """Return the fitting replacements that take the answer away: similar words first, then the lowest answer.

        They have a fit of at least `FITTING`, leave at most half of the answer, and make the model say something else.
        Fits must be known, because a replacement that does not fit can take any answer away. There are none for an
        answer below `NEGLIGIBLE`, or for a word with a single replacement.
        """
        if not self.fitted or self.before < NEGLIGIBLE or len(tried.every) < SEVERAL:
            return []
        found = [one for one in tried.every if one.says and one.answer <= TAKEN * self.before and one.fit >= FITTING]
        return sorted(found, key=lambda one: (one.chosen != "similar", one.answer))

    @property
    def named(self) -> tuple[Tried, ...]:
        """The words that a verdict names, at most `NAMED`: words that decide, then words with a contrast.

        The first is the one with the largest effect. The next is named if its effect is at least a tenth of that.
        """
        found = [word for word in self.words if self.decides(word)]
        found += [word for word in self.words if word not in found and self.contrast(word) is not None]
        return tuple(word for word in found[:NAMED] if word.effect >= CLOSE * found[0].effect)
