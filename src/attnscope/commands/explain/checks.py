"""Checks of an explanation that was read from a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from attnscope.commands.explain.tried import scaled
from attnscope.core.decoding import FieldError
from attnscope.core.ranges import slack

if TYPE_CHECKING:
    from attnscope.commands.explain.record import Explanation
    from attnscope.commands.explain.tried import Trial, Tried


def check(found: Explanation) -> None:
    """Raise a `FieldError` that names the first wrong field."""
    sizes = [len(read.tokens) for read in found.inputs]
    if not found.methods or not any(sizes):
        raise FieldError("methods: at least one method and one token are needed")
    if len(set(found.names)) < len(found.names):
        raise FieldError("methods: a method is listed twice")
    for number, method in enumerate(found.methods):
        _check_scores(method.scores, sizes, f"methods[{number}].scores")
        if not method.signed and any(score < -slack(0.0) for row in method.scores for score in row):
            raise FieldError(f"methods[{number}].scores: numbers of 0 or more are needed, as the method has no signs")
    for number, step in enumerate(found.steps):
        if len(step.methods) != len(step.scores) or step.methods != found.steps[0].methods:
            raise FieldError(f"steps[{number}].scores: a score for every token by every method is needed")
        for rows in step.scores:
            _check_scores(rows, sizes, f"steps[{number}].scores")
    if (split := found.lengths) is not None:
        words = next((read.tokens for read in found.inputs if read.name == split.input), ())
        if len(words) != len(split.tokens) or any(len(row) != len(split.constants) for row in split.tokens):
            raise FieldError("lengths: a number for every token of its input and every length is needed")
    if found.trial is not None:
        _check_trial(found.trial, {read.name: len(read.tokens) for read in found.inputs}, found.names)
    if found.position is not None and found.position >= sizes[-1]:
        raise FieldError(f"position: one of {sizes[-1]} tokens is needed")
    for number, read in enumerate(found.inputs):
        if read.before < 0 or (read.grid is not None and min(read.grid) < 1):
            raise FieldError(f"inputs[{number}].grid: there are more patches than tokens, or none")
        if read.shown is not None and not read.shown.startswith("data:image/"):
            raise FieldError(f"inputs[{number}].shown: the picture must be a data: address")


def _check_trial(trial: Trial, sizes: Mapping[str, int], methods: Sequence[str]) -> None:
    """Raise unless every tried word lies in an input and has a replacement, and every method is known."""
    for word in (*trial.words, *trial.pairs, *([trial.asking] if trial.asking else [])):
        if not word.tokens or not word.replacements or max(word.tokens) >= sizes.get(word.input, 0):
            raise FieldError("trial.words: tokens of an input, and a replacement for each, are needed")
        _check_answers(trial, word)
    if trial.unit == "probability" and not _is_probability(trial.before):
        raise FieldError(f"trial.before: a probability from 0 to 1 is needed, not {trial.before:g}")
    if not trial.words or any(name not in methods for name, _ in trial.agreement):
        raise FieldError("trial.agreement: tried words, and methods of this explanation, are needed")


def _check_answers(trial: Trial, word: Tried) -> None:
    """Raise unless answers are probabilities where they should be, and the effect is a mean of their falls."""
    if trial.unit == "probability" and not all(_is_probability(one.answer) for one in word.every):
        raise FieldError("trial.words.replacements.answer: probabilities from 0 to 1 are needed")
    before = scaled(trial.before, trial.unit)
    falls = [one.fit * (before - scaled(one.answer, trial.unit)) for one in word.every]
    if not min(falls) - slack(min(falls)) <= word.effect <= max(falls) + slack(max(falls)):
        raise FieldError(f"trial.words.effect: a mean of the falls of the answer is needed, not {word.effect:g}")


def _is_probability(number: float) -> bool:
    return -slack(0.0) <= number <= 1 + slack(1.0)


def _check_scores(rows: Sequence[Sequence[float]], sizes: Sequence[int], where: str) -> None:
    """Raise unless there is one row for each input, which is empty or has a score for every token."""
    if len(rows) != len(sizes) or any(len(row) not in (0, size) for row, size in zip(rows, sizes, strict=True)):
        raise FieldError(f"{where}: a number for every token of every input is needed")
