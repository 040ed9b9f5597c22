"""Read `--block` and `--head`: one number says where the page opens, several restrict what is kept.

chosen("3", range(12), "block")        Choice(opens=3, kept=(0, ..., 11))
chosen("0-3,7", range(12), "block")    Choice(opens=0, kept=(0, 1, 2, 3, 7))
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import index

from attnscope.commands.scan.diagnose import diagnose
from attnscope.commands.scan.survey.survey import Survey
from attnscope.commands.view.settings import Words
from attnscope.core.errors import RefusalError
from attnscope.core.words import ranges

_PIECE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")


@dataclass(frozen=True)
class Choice:
    opens: int | None  # None: not given
    kept: tuple[int, ...]


def chosen(words: Words, there: Iterable[int], what: str) -> Choice:
    """Return the chosen numbers among `there`; refuse others. `what` is the name of the option."""
    known = tuple(sorted(set(there)))
    if words is None:
        return Choice(None, known)
    wanted = _numbers(words, what)
    missing = [number for number in wanted if number not in known]
    if missing or not wanted:
        problem = f"There is no {what} {missing[0]} with attention" if missing else f"No {what} was named"
        raise RefusalError(f"{problem}: choose from {ranges(known)} with --{what}.")
    alone = isinstance(words, int) or (isinstance(words, str) and words.strip().isdecimal())
    return Choice(wanted[0], known if alone else tuple(sorted(set(wanted))))


def _numbers(words: str | int | Sequence[int] | range, what: str) -> tuple[int, ...]:
    if isinstance(words, int):
        return (words,)
    if not isinstance(words, str):
        try:
            return tuple(index(number) for number in words)
        except TypeError:
            raise RefusalError(f"{words!r} does not name a {what}: give a number, or several as '0-3,7'.") from None
    numbers: list[int] = []
    for piece in filter(None, map(str.strip, words.split(","))):
        match = _PIECE.fullmatch(piece)
        if match is None:
            raise RefusalError(f"'{piece[:20]}' does not name a {what}: give a number, or several as 0-3,7.")
        begin, end = int(match[1]), int(match[2] or match[1])
        if end < begin:
            raise RefusalError(f"'{piece}' ends before it begins: give --{what} the smaller number first.")
        numbers += range(begin, end + 1)
    return tuple(numbers)


@dataclass(frozen=True)
class Behind:
    """A sequence of a survey, and the head and sentence of the finding that names it."""

    sample: int
    layer: int | None  # None: no finding names a head
    head: int | None
    sentence: str


def behind_finding(survey: Survey, sample: int | None) -> Behind:
    """Return sequence `sample`, by default the sequence that the most severe finding names."""
    kept = survey.sequences
    if not kept:
        raise RefusalError(
            "The survey has no sequences (no finding names one, or it was made with `keep_text=False`): scan again, or "
            "give a text."
        )
    if sample is not None and sample not in kept:
        raise RefusalError(f"The survey has no sample {sample}: choose with `sample=` one of {ranges(kept)}.")
    for finding in diagnose(survey):  # worst first
        number = finding.details.get("sample")
        if number in kept and sample in (None, number) and finding.heads:
            return Behind(number, *finding.heads[0], finding.sentence)
    return Behind(next(iter(kept)) if sample is None else sample, None, None, "")
