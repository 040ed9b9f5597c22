"""Grade each variant by how much of the differences between tokens it keeps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum

from attnscope.commands.collapse.record import Collapse
from attnscope.core.words import count, numeral
from attnscope.reports.words import Level, Verdict

COLLAPSED = 1e-3  # relative residual below which all tokens count as equal
NEARLY_ALL, MOST, HALF = 0.9, 0.6, 0.4
"""Limits of the grades: the residual at the end divided by the residual at the start."""


class Grade(IntEnum):
    """Grades from worst to best."""

    BROKEN = 0  # no finite number at the end
    COLLAPSES = 1
    LOSES_MOST = 2
    LOSES_HALF = 3
    KEEPS_MOST = 4
    KEEPS_NEARLY_ALL = 5


OF_TOKENS = " of what tells its tokens apart"
WORDS = {
    Grade.COLLAPSES: "collapses",
    Grade.LOSES_MOST: f"loses most{OF_TOKENS}",
    Grade.LOSES_HALF: f"loses about half{OF_TOKENS}",
    Grade.KEEPS_MOST: f"keeps most{OF_TOKENS}",
    Grade.KEEPS_NEARLY_ALL: f"keeps nearly all{OF_TOKENS}",
}


def graded(mean: Sequence[float]) -> Grade:
    """Return the grade of a curve. One that ever falls below `COLLAPSED` has collapsed: later growth is rounding."""
    if any(math.isfinite(value) and value < COLLAPSED for value in mean):
        return Grade.COLLAPSES
    if not math.isfinite(mean[-1]):
        return Grade.BROKEN
    kept = share_left(mean)
    if kept >= NEARLY_ALL:
        return Grade.KEEPS_NEARLY_ALL
    if kept >= MOST:
        return Grade.KEEPS_MOST
    return Grade.LOSES_HALF if kept >= HALF else Grade.LOSES_MOST


def share_left(mean: Sequence[float]) -> float:
    """Return the last residual divided by the first; 1 if the first is zero or unknown."""
    return mean[-1] / mean[0] if math.isfinite(mean[0]) and mean[0] > 0 else 1.0


def share_words(share: float) -> str:
    """Return `92%`, or `less than 1%` for a share that would round to 0%."""
    return "less than 1%" if share < 0.01 else f"{100 * share:.0f}%"


SUBJECTS = {
    "san": "Attention alone",
    "san+mlp": "Attention with MLPs",
    "san+skip": "Attention with skips",
    "whole": "The whole model",
}
WOULD = {
    Grade.BROKEN: "would give no finite number",
    Grade.COLLAPSES: "would collapse",
    Grade.LOSES_MOST: "would lose most of it",
    Grade.LOSES_HALF: "would lose about half of it",
    Grade.KEEPS_MOST: "would keep most of it",
    Grade.KEEPS_NEARLY_ALL: "would keep nearly all of it",
}
LEVELS: dict[Grade, Level] = {
    Grade.BROKEN: "critical",
    Grade.COLLAPSES: "critical",
    Grade.LOSES_MOST: "warning",
    Grade.LOSES_HALF: "note",
}


def verdict(record: Collapse) -> Verdict:
    """Say how much the whole model keeps, and what skips and MLPs prevent.

    Without the whole model the verdict is a note on the last variant.
    """
    if "whole" not in record.curves:
        name = list(record.curves)[-1]
        return Verdict("note", _variant(name, record.curves[name].mean, record))
    mean = record.curves["whole"].mean
    grade = graded(mean)
    level = LEVELS.get(grade, "calm")
    if grade in (Grade.BROKEN, Grade.COLLAPSES):
        first = _variant("whole", mean, record).removesuffix(".")
    else:
        kept = share_left(mean)
        left = f"{share_words(kept)} is left after {count(record.layers, 'block')}"
        if kept > 1:
            before, after = numeral(mean[0], 3), numeral(mean[-1], 3)
            left = f"the residual is {after} after {count(record.layers, 'block')}, {before} before"
        first = f"The whole model {WORDS[grade]} ({left})"
    return Verdict(level, f"{first}{_saved(record, grade)}.")


def _saved(record: Collapse, grade: Grade) -> str:
    """Say how much attention alone would keep, and which part makes the difference."""
    known = {name: graded(curve.mean) for name, curve in record.curves.items()}
    alone, skips, mlps = (known.get(name) for name in ("san", "san+skip", "san+mlp"))
    if alone is None or grade is Grade.BROKEN:
        return ""
    if alone is Grade.COLLAPSES and grade is Grade.COLLAPSES:
        tried = [one for one in (skips, mlps) if one is not None]
        if len(tried) == 2 and max(tried) is Grade.COLLAPSES:
            return ", and neither skips nor MLPs save it"
        return "; attention alone would collapse too"
    if alone >= grade:
        return f"; attention alone {WOULD[alone]}{' too' if alone == grade else ''}"
    said = f"; attention alone {WOULD[alone]}"
    return said if skips is None or mlps is None else f"{said}, and {_saviour(skips, mlps, grade)} save it from that"


def _saviour(skips: Grade, mlps: Grade, grade: Grade) -> str:
    """Name the parts that attention needs to reach the grade of the whole model."""
    if skips < grade and mlps < grade:
        return "it takes skips and MLPs together to"
    if skips >= grade and mlps >= grade:
        return "skips or MLPs, either of them,"
    return "skips" if skips >= grade else "MLPs"


def variant_sentences(record: Collapse, *, short: bool = False) -> tuple[str, ...]:
    """Say what is left in every variant; with `short`, in one terminal line each."""
    said = tuple(_variant(name, curve.mean, record) for name, curve in record.curves.items())
    return tuple(sentence.replace(OF_TOKENS, "") for sentence in said) if short else said


def _variant(name: str, mean: Sequence[float], record: Collapse) -> str:
    subject, grade, last = SUBJECTS[name], graded(mean), len(mean) - 1
    known = [(depth, value) for depth, value in enumerate(mean) if math.isfinite(value)]
    if not known:
        return f"{subject} gives no finite number."
    start, (end_depth, end) = known[0][1], known[-1]
    if grade is Grade.COLLAPSES:
        rounding = next((depth for depth, value in known if value <= 8 * record.floor), None)
        if rounding is not None:
            return f"{subject} collapses: {_after(rounding)} only rounding is left (below {_ten(80 * record.floor)})."
        first = next(depth for depth, value in known if value < COLLAPSED)
        more = "" if first == end_depth else f", {numeral(end, 3)} {place_words(end_depth, last)}"
        return f"{subject} collapses: the residual is {numeral(mean[first], 3)} {_after(first)}{more}."
    if grade is Grade.BROKEN:
        return (
            f"{subject} gives no finite number {_after(end_depth + 1)}: the residual was {numeral(end, 3)} "
            f"{place_words(end_depth, last)}."
        )
    if end > start:
        left = f"{numeral(end, 3)} {_after(last)}, {numeral(start, 3)} entering block 0"
    else:
        left = f"{numeral(end, 3)} of {numeral(start, 3)} is left {_after(last)}"
    return f"{subject} {WORDS[grade]}: {left}."


def _after(depth: int) -> str:
    return f"after block {depth - 1}" if depth else "from the start"


def _ten(value: float) -> str:
    """Return the power of ten at or below a number."""
    return numeral(10.0 ** math.floor(math.log10(value)))


def place_words(depth: int, blocks: int) -> str:
    """Return `entering block 3`, or `after block 11` for the stream that leaves the last block."""
    return f"entering block {depth}" if depth < blocks else f"after block {depth - 1}"
