"""The record of `explain`: for one answer, a score for every token of the input by each of several methods.

    found.value, found.target                      the number that is explained
    found.scores("relevance")                      scores of one method, all tokens in order
    found.top("relevance", 5)                      the tokens with the highest scores
    found.agreement()                              rank correlation of every two methods
    found.save("explanation.json"); Explanation.load("explanation.json")

Methods have different units. Compare scores within one method; between two methods compare only their order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from attnscope.commands.explain.checks import check
from attnscope.commands.explain.tried import Trial
from attnscope.core.errors import RefusalError, nearest
from attnscope.core.ranges import Finite, Index, Positive, Provenance, Several, Size
from attnscope.reports.record import Record

if TYPE_CHECKING:
    import pandas


SUM_BOUND = 0.05  # a sum of scores may be off by this share of what it should be


@dataclass(frozen=True)
class Asked:
    """The parts of the target. `Explanation.target` describes it in words."""

    kind: Literal["logit", "difference", "continuation", "norm", "entry", "similarity", "match"]
    word: str | None = None  # the token or class of the logit
    other: str | None = None  # the token or class whose logit is subtracted, or the other text
    where: str = ""  # "after the last token"; empty if the answer belongs to the whole text
    of: str = "mean state"  # the vector of a norm or an entry

    @property
    def words(self) -> str:
        if self.kind == "norm":
            return f"norm of the {self.of}"
        if self.kind == "entry":
            return f"entry {self.word} of the {self.of}"
        if self.kind == "match":
            return f"likeness of picture and text, {self.where}"
        if self.kind == "continuation":
            return f"sum of logits of '{self.word}' ({self.where})"
        if self.kind == "similarity":
            return (
                f"likeness to '{self.other}'" if self.word is None else f"likeness of '{self.word}' and '{self.other}'"
            )
        taken = "" if self.other is None else f" minus that of '{self.other}'"
        return f"logit of '{self.word}'{taken}{self.where and ' '}{self.where}"


@dataclass(frozen=True)
class Input:
    """One sequence of tokens that the model read, such as the input of its encoder or of its decoder.

    For an `image` these are its patches, row by row, after any leading tokens ([CLS], registers). For a `sound` these
    are moments of equal length.
    """

    name: str
    tokens: tuple[str, ...]
    kind: Literal["text", "image", "sound"] = "text"
    grid: tuple[Several, Several] | None = None  # rows and columns of patches: the last tokens
    shown: str | None = None  # the picture as the model read it, as data:
    seconds: Size | None = None  # length of the sound
    window: Positive | None = None  # length of all moments together, including the silence after a short sound

    @property
    def before(self) -> int:
        """The number of leading tokens, which are not patches."""
        return len(self.tokens) if self.grid is None else len(self.tokens) - self.grid[0] * self.grid[1]

    @property
    def step(self) -> float | None:
        """The length of one moment, in seconds."""
        return None if self.window is None or not self.tokens else self.window / len(self.tokens)


@dataclass(frozen=True)
class Token:
    """One token of the input, and its score by some method."""

    input: str
    place: int  # from 0, within its input
    word: str
    score: float


@dataclass(frozen=True)
class Scored:
    """The scores of one method for each input. Empty for an input that the method does not score."""

    name: str
    title: str
    group: str  # "default", "slow" or "floor"
    signed: bool  # whether scores can be negative
    scores: tuple[tuple[Finite, ...], ...]
    adds_up: str | None = None  # what all scores add up to, in words
    sums_to: Finite | None = None  # what they should add up to; None if that is unknown
    reads_answer: bool = True  # False if scores do not depend on which answer is explained

    @property
    def passes(self) -> bool | None:
        """Whether the scores add up to `sums_to` within SUM_BOUND of it; None if that is unknown.

        A method that fails this check of its own has no say.
        """
        return None if self.sums_to is None else abs(self.total - self.sums_to) <= SUM_BOUND * abs(self.sums_to)

    @property
    def total(self) -> float:
        return math.fsum(number for row in self.scores for number in row)

    @property
    def reach(self) -> float:
        """The largest absolute score, or 1 if there is none."""
        return max((abs(number) for row in self.scores for number in row if math.isfinite(number)), default=0.0) or 1.0


@dataclass(frozen=True)
class ByLength:
    """The scores of path_contribution, split by the number of heads that a path passes.

    All scores and the constants add up to the answer.
    """

    input: str
    tokens: tuple[tuple[Finite, ...], ...]  # indexed by token and length
    constants: tuple[Finite, ...]  # by length: biases and shifts of norms

    @property
    def total(self) -> float:
        return math.fsum((*self.constants, *(number for row in self.tokens for number in row)))

    @property
    def sums(self) -> tuple[float, ...]:
        """Sums over tokens and constants, by length."""
        return tuple(math.fsum(column) for column in zip(self.constants, *self.tokens, strict=True))


@dataclass(frozen=True)
class Step:
    """One token of a continuation: its logit, and the score of every token before it.

    Only methods that need one pass are included. The scores of a method are in the order of `Explanation.inputs`.
    """

    word: str
    value: Finite
    methods: tuple[str, ...]
    scores: tuple[tuple[tuple[Finite, ...], ...], ...]

    def of(self, method: str) -> tuple[tuple[float, ...], ...]:
        return self.scores[self.methods.index(method)]


@dataclass(frozen=True, repr=False)
class Explanation(Record):
    """The explanation of one answer by several methods."""

    KIND: ClassVar[str] = "explanation"
    COMMAND: ClassVar[str] = "explain"
    FILE: ClassVar[str] = "explanation.json"

    model: str
    class_name: str
    text: str
    inputs: tuple[Input, ...]
    target: str  # in words
    asked: Asked
    position: Index | None  # of the token that answers, in the last input; None if the answer belongs to the whole text
    value: Finite  # of the target
    dtype: str
    baseline: str  # the neutral token, in words
    methods: tuple[Scored, ...]
    steps: tuple[Step, ...] = ()  # of a continuation, token by token
    notes: tuple[str, ...] = ()
    provenance: Provenance = field(default_factory=dict)
    lengths: ByLength | None = None  # if path_contribution was requested
    trial: Trial | None = None  # what replacing words did; None without a trial

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.methods)

    @property
    def voting(self) -> tuple[Scored, ...]:
        """All methods except the floor, which is random, and those that fail their own check."""
        return tuple(one for one in self.methods if one.group != "floor" and one.passes is not False)

    @property
    def continued_at(self) -> int | None:
        """Index of the first token of the continuation in the last input, or None if there is no continuation.

        The last token of a continuation is predicted and not read.
        """
        read = len(self.inputs[-1].tokens)
        return read - (len(self.steps) - 1) if 1 < len(self.steps) <= read else None

    def method(self, name: str) -> Scored:
        if name not in self.names:
            raise RefusalError(f"This explanation has no method '{name}'.{nearest(name, self.names)}")
        return self.methods[self.names.index(name)]

    def tokens(self, name: str) -> tuple[Token, ...]:
        """Return all tokens that a method scores, in reading order."""
        return tuple(
            Token(read.name, place, word, score)
            for read, row in zip(self.inputs, self.method(name).scores, strict=True)
            for place, (word, score) in enumerate(zip(read.tokens, row, strict=False))
        )

    def scores(self, name: str) -> tuple[float, ...]:
        return tuple(token.score for token in self.tokens(name))

    def top(self, name: str, most: int = 10) -> tuple[Token, ...]:
        """Return the tokens with the highest scores, largest first, and tokens with equal scores in reading order."""
        return tuple(sorted(self.tokens(name), key=lambda token: -token.score)[:most])

    def named(self, name: str, few: int = 1) -> tuple[Token, ...]:
        """Return the first `few` tokens of a method, and all tokens that tie with the last of them.

        Tokens with the method's lowest score are left out, because it says nothing. Ties are included so that BOS is
        not named only because it was read first.
        """
        ranked = self.top(name, len(self.scores(name)))
        first = [token for token in ranked[:few] if token.score > ranked[-1].score]
        return tuple(token for token in ranked if first and token.score >= first[-1].score)

    def unlisted(self, name: str, most: int = 10) -> int:
        """Return how many tokens tie with the last of `top` but did not fit into it."""
        last = self.top(name, most)[-1].score
        return sum(token.score == last for token in self.top(name, len(self.scores(name)))[most:])

    def agreement(self) -> dict[tuple[str, str], float]:
        """Return Spearman's rank correlation of every two methods, over the tokens that both score.

        It is NaN if one of them gives all tokens the same score.
        """
        from scipy.stats import rankdata

        correlations = {}
        for one, other in combinations(self.voting, 2):
            pairs = [
                pair
                for mine, theirs in zip(one.scores, other.scores, strict=True)
                if mine and theirs
                for pair in zip(mine, theirs, strict=True)
            ]
            left, right = (rankdata(side) for side in zip(*pairs, strict=True)) if pairs else ((), ())
            correlations[one.name, other.name] = _correlation(left, right)
        return correlations

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Explanation:
        """Return the record that `to_json` wrote. A `FieldError` names a wrong field."""
        found = super().from_json(data)
        check(found)
        return found

    def matrix(self, name: str) -> pandas.DataFrame:
        """Return scores of one method: a row for every token read, a column for every token that followed."""
        import pandas

        if not self.steps:
            raise RefusalError("This explanation has no continuation: request one with generate= or a long target.")
        if name not in self.steps[0].methods:
            raise RefusalError(f"This explanation has no matrix by '{name}'.{nearest(name, self.steps[0].methods)}")
        index = [(read.name, place, word) for read in self.inputs for place, word in enumerate(read.tokens)]
        data = {
            f"{number} {step.word}": [
                score
                for read, row in zip(self.inputs, step.of(name), strict=True)
                for score in (row or (math.nan,) * len(read.tokens))
            ]
            for number, step in enumerate(self.steps)
        }
        return pandas.DataFrame(data, index=pandas.MultiIndex.from_tuples(index, names=["input", "place", "token"]))

    def table(self) -> pandas.DataFrame:
        """Return one row for each method and token."""
        import pandas

        return pandas.DataFrame(
            {"method": name, "input": token.input, "place": token.place, "token": token.word, "score": token.score}
            for name in self.names
            for token in self.tokens(name)
        )

    def __repr__(self) -> str:
        tokens, methods = sum(len(one.tokens) for one in self.inputs), len(self.methods)
        return f"<Explanation of {self.model}: {self.target} = {self.value:.4g}, {tokens} tokens, {methods} methods>"


def _correlation(left: Any, right: Any) -> float:
    import numpy

    if len(left) < 2 or not all(numpy.ptp(side) > 0 and numpy.isfinite(side).all() for side in (left, right)):
        return math.nan
    return float(numpy.corrcoef(left, right)[0, 1])
