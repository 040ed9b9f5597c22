"""What `explain` found: for one answer, a number for every token of the input by each of several methods.

    found.value, found.target                      what is explained
    found.scores("relevance")                      numbers of one method, all tokens in order
    found.top("relevance", 5)                      the tokens that did most
    found.agreement()                              rank correlation of every two methods
    found.save("explanation.json"); Explanation.load("explanation.json")

Numbers of different methods have different units: within one method they can be compared, between two only their order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from attnscope.core.decoding import FieldError
from attnscope.core.errors import RefusalError, nearest
from attnscope.reports.record import Record

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Asked:
    """The target by its parts, where `Explanation.target` is a sentence."""

    kind: Literal["logit", "difference", "continuation", "norm", "entry", "similarity", "match"]
    word: str | None = None  # the token or class whose logit it is
    other: str | None = None  # the one whose logit is taken away, or the other text
    where: str = ""  # "after the last token"; empty where the answer is of the whole text
    of: str = "mean state"  # what a norm or an entry is of

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
    """A row of tokens that the model read: `encoder`, `decoder`, or its only one; of an `image` the patches, row by
    row, behind what stands before them ([CLS], registers); of a `sound` moments of equal length."""

    name: str
    tokens: tuple[str, ...]
    kind: Literal["text", "image", "sound"] = "text"
    grid: tuple[int, int] | None = None  # rows and columns of patches: the last tokens
    shown: str | None = None  # the picture as the model read it, as data:
    seconds: float | None = None  # how long the sound is
    window: float | None = None  # how long all moments are together, with the silence behind a short sound

    @property
    def before(self) -> int:
        """How many tokens are no patches."""
        return len(self.tokens) if self.grid is None else len(self.tokens) - self.grid[0] * self.grid[1]

    @property
    def step(self) -> float | None:
        """Seconds of one moment."""
        return None if self.window is None or not self.tokens else self.window / len(self.tokens)


@dataclass(frozen=True)
class Token:
    """One token of the input, and its number by some method."""

    input: str
    place: int  # from 0, within its input
    word: str
    score: float


@dataclass(frozen=True)
class Scored:
    """The numbers of one method, input by input; empty where it does not speak of one."""

    name: str
    title: str
    group: str  # "default", "slow" or "floor"
    signed: bool  # whether a token can speak against the answer
    scores: tuple[tuple[float, ...], ...]
    adds_up: str | None = None  # what all numbers add up to, in words

    @property
    def total(self) -> float:
        return math.fsum(number for row in self.scores for number in row)


@dataclass(frozen=True)
class ByLength:
    """What the frozen network sends to the answer, by token and by how many heads it passes: the numbers of
    path_contribution, split. All of them and the constants add up to the answer."""

    input: str
    tokens: tuple[tuple[float, ...], ...]  # token, length
    constants: tuple[float, ...]  # by length: biases and shifts of norms

    @property
    def total(self) -> float:
        return math.fsum((*self.constants, *(number for row in self.tokens for number in row)))

    @property
    def sums(self) -> tuple[float, ...]:
        """Over tokens and constants, by length."""
        return tuple(math.fsum(column) for column in zip(self.constants, *self.tokens, strict=True))


@dataclass(frozen=True)
class Step:
    """One token of a continuation: its logit where it is predicted, and what every token before it did for that, by
    methods that need one pass, in the order of `Explanation.inputs`."""

    word: str
    value: float
    methods: tuple[str, ...]
    scores: tuple[tuple[tuple[float, ...], ...], ...]

    def of(self, method: str) -> tuple[tuple[float, ...], ...]:
        return self.scores[self.methods.index(method)]


@dataclass(frozen=True, repr=False)
class Explanation(Record):
    """One answer, explained."""

    KIND: ClassVar[str] = "explanation"
    COMMAND: ClassVar[str] = "explain"
    FILE: ClassVar[str] = "explanation.json"

    model: str
    class_name: str
    text: str
    inputs: tuple[Input, ...]
    target: str  # in words
    asked: Asked
    position: int | None  # of the token that answers, in the last input; None where the answer is of the whole text
    value: float  # of the target
    dtype: str
    baseline: str  # what a token that says nothing is, in words
    methods: tuple[Scored, ...]
    steps: tuple[Step, ...] = ()  # of a continuation, token by token
    notes: tuple[str, ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)
    lengths: ByLength | None = None  # where path_contribution was asked for

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.methods)

    @property
    def voting(self) -> tuple[Scored, ...]:
        """Methods that know something: all but the floor."""
        return tuple(one for one in self.methods if one.group != "floor")

    @property
    def continued_at(self) -> int | None:
        """The first token of the last input that belongs to the continuation itself; None where there is none. Of its
        tokens the last is predicted and not read."""
        read = len(self.inputs[-1].tokens)
        return read - (len(self.steps) - 1) if 1 < len(self.steps) <= read else None

    def method(self, name: str) -> Scored:
        found = next((one for one in self.methods if one.name == name), None)
        if found is None:
            raise RefusalError(f"There is no '{name}' in this explanation.{nearest(name, self.names)}")
        return found

    def tokens(self, name: str) -> tuple[Token, ...]:
        """All tokens that a method speaks of, in the order in which they were read."""
        return tuple(
            Token(read.name, place, word, score)
            for read, row in zip(self.inputs, self.method(name).scores, strict=True)
            for place, (word, score) in enumerate(zip(read.tokens, row, strict=False))
        )

    def scores(self, name: str) -> tuple[float, ...]:
        return tuple(token.score for token in self.tokens(name))

    def top(self, name: str, most: int = 10) -> tuple[Token, ...]:
        """The tokens that speak most for the answer, largest first; of equals the one that was read first."""
        return tuple(sorted(self.tokens(name), key=lambda token: -token.score)[:most])

    def named(self, name: str, few: int = 1) -> tuple[Token, ...]:
        """The first `few` tokens of a method and all that are equal to the last of them; none that has the method's
        lowest number, which says nothing. Reading first is no merit: BOS is not named before its equals."""
        lowest = min(self.scores(name))
        first = [token for token in self.top(name, few) if token.score > lowest]
        return tuple(
            token for token in self.top(name, len(self.scores(name))) if first and token.score >= first[-1].score
        )

    def unlisted(self, name: str, most: int = 10) -> int:
        """How many tokens have the same number as the last of `top` and are not in it for want of room."""
        listed = self.top(name, most)
        equal = sum(token.score == listed[-1].score for token in self.tokens(name))
        return equal - sum(token.score == listed[-1].score for token in listed)

    def agreement(self) -> dict[tuple[str, str], float]:
        """Spearman's rank correlation of every two methods, over the tokens of which both speak; NaN where one of them
        gives all tokens the same."""
        from scipy.stats import rankdata

        found = {}
        for one, other in combinations(self.voting, 2):
            pairs = [
                pair
                for mine, theirs in zip(one.scores, other.scores, strict=True)
                if mine and theirs
                for pair in zip(mine, theirs, strict=True)
            ]
            left, right = (rankdata(side) for side in zip(*pairs, strict=True)) if pairs else ((), ())
            found[one.name, other.name] = _correlation(left, right)
        return found

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Explanation:
        """What `to_json` gave, read back; a `FieldError` names what does not belong there."""
        found = super().from_json(data)
        for number, one in enumerate(found.methods):
            fits = len(one.scores) == len(found.inputs) and all(
                len(row) in (0, len(read.tokens)) for row, read in zip(one.scores, found.inputs, strict=False)
            )
            if not fits:
                raise FieldError(f"methods[{number}].scores: a number for every token of every input is needed")
            if not all(math.isfinite(score) for row in one.scores for score in row):
                raise FieldError(f"methods[{number}].scores: one of its numbers is not finite")
        if (split := found.lengths) is not None:
            words = next((one.tokens for one in found.inputs if one.name == split.input), ())
            if len(words) != len(split.tokens) or any(len(row) != len(split.constants) for row in split.tokens):
                raise FieldError("lengths: a number for every token of its input and every length is needed")
        for number, read in enumerate(found.inputs):
            if read.before < 0 or (read.grid is not None and min(read.grid) < 1):
                raise FieldError(f"inputs[{number}].grid: as many patches as tokens at most are needed")
            if read.shown is not None and not read.shown.startswith("data:image/"):
                raise FieldError(f"inputs[{number}].shown: a picture as data: is needed")
        lengths = [len(read.tokens) for read in found.inputs]
        for number, step in enumerate(found.steps):
            whole = len(step.methods) == len(step.scores) and all(
                len(rows) == len(lengths) and all(len(row) in (0, n) for row, n in zip(rows, lengths, strict=True))
                for rows in step.scores
            )
            if not whole or step.methods != found.steps[0].methods:
                raise FieldError(f"steps[{number}].scores: a number for every token of every input is needed")
            if not all(math.isfinite(score) for rows in step.scores for row in rows for score in row):
                raise FieldError(f"steps[{number}].scores: one of its numbers is not finite")
        if not found.methods or not found.inputs or not any(one.tokens for one in found.inputs):
            raise FieldError("methods: one method at least and one token at least are needed")
        if len(set(found.names)) < len(found.names):
            raise FieldError("methods: every method once is needed")
        return found

    def matrix(self, name: str) -> pandas.DataFrame:
        """What every token of the input (rows) did for every token of a continuation (columns), by one method."""
        import pandas

        if not self.steps:
            raise RefusalError(
                "There is no continuation in this explanation: ask for one with generate=, or a long target."
            )
        if name not in self.steps[0].methods:
            raise RefusalError(f"There is no matrix by '{name}'.{nearest(name, self.steps[0].methods)}")
        index = [(read.name, place, word) for read in self.inputs for place, word in enumerate(read.tokens)]
        columns = [f"{number} {step.word}" for number, step in enumerate(self.steps)]
        data = {
            column: [
                score
                for read, row in zip(self.inputs, step.of(name), strict=True)
                for score in (row or (math.nan,) * len(read.tokens))
            ]
            for column, step in zip(columns, self.steps, strict=True)
        }
        return pandas.DataFrame(data, index=pandas.MultiIndex.from_tuples(index, names=["input", "place", "token"]))

    def table(self) -> pandas.DataFrame:
        """One row for each method and token."""
        import pandas

        rows = [
            {
                "method": name,
                "input": token.input,
                "place": token.place,
                "token": token.word,
                "score": token.score,
            }
            for name in self.names
            for token in self.tokens(name)
        ]
        return pandas.DataFrame(rows)

    def __repr__(self) -> str:
        tokens, methods = sum(len(one.tokens) for one in self.inputs), len(self.methods)
        return f"<Explanation of {self.model}: {self.target} = {self.value:.4g}, {tokens} tokens, {methods} methods>"


def _correlation(left: Any, right: Any) -> float:
    import numpy

    if len(left) < 2 or not all(numpy.ptp(side) > 0 and numpy.isfinite(side).all() for side in (left, right)):
        return math.nan
    return float(numpy.corrcoef(left, right)[0, 1])
