"""Say how much of the differences between tokens each variant keeps, and whether it collapses.

The words are the number itself: the residual at the end as a share of the residual at the start. How much is usual is
not known without other models to compare with, so there is no other grade than collapsed or not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum

from attnscope.commands.collapse.record import Collapse
from attnscope.core.words import count, numeral
from attnscope.reports.words import Verdict

COLLAPSED = 1e-3  # relative residual below which all tokens count as equal
OF_TOKENS = " of what tells its tokens apart"


class Grade(Enum):
    """What became of the tokens."""

    BROKEN = "no finite number at the end"
    COLLAPSES = "all tokens are equal"
    KEEPS = "tokens still differ"


def graded(mean: Sequence[float]) -> Grade:
    """Return the grade of a curve. One that ever falls below `COLLAPSED` has collapsed: later growth is rounding."""
    if any(math.isfinite(value) and value < COLLAPSED for value in mean):
        return Grade.COLLAPSES
    return Grade.KEEPS if math.isfinite(mean[-1]) else Grade.BROKEN


def share_left(mean: Sequence[float]) -> float | None:
    """Return the last residual divided by the first; None if one of them is unknown."""
    return mean[-1] / mean[0] if math.isfinite(mean[0]) and mean[0] > 0 and math.isfinite(mean[-1]) else None


def share_words(share: float) -> str:
    """Return `92%`, `all` for 1 or more, or `less than 1%` for a share that would round to 0%."""
    if share >= 1:
        return "all"
    return "less than 1%" if share < 0.01 else f"{min(99.0, 100 * share):.0f}%"


SUBJECTS = {
    "san": "Attention alone",
    "san+mlp": "Attention with MLPs",
    "san+skip": "Attention with skips",
    "whole": "The whole model",
}


def verdict(record: Collapse) -> Verdict:
    """Say how much the whole model keeps, and what skips and MLPs change.

    Without the whole model the verdict is a note on the last variant.
    """
    if "whole" not in record.curves:
        name = list(record.curves)[-1]
        return Verdict("note", _variant(name, record.curves[name].mean, record))
    mean = record.curves["whole"].mean
    grade, kept = graded(mean), share_left(mean)
    if grade is not Grade.KEEPS or kept is None:
        first = _variant("whole", mean, record).removesuffix(".")
    else:
        first = f"The whole model keeps {share_words(kept)}{OF_TOKENS} after {count(record.layers, 'block')}"
        if kept > 1:
            first += f" (the residual grows from {numeral(mean[0], 3)} to {numeral(mean[-1], 3)})"
    return Verdict("note" if grade is Grade.KEEPS else "critical", f"{first}{_others(record, grade)}.")


def _others(record: Collapse, grade: Grade) -> str:
    """Say what attention alone would keep, and how much skips or MLPs change that."""
    curves = {name: curve.mean for name, curve in record.curves.items()}
    if "san" not in curves or grade is Grade.BROKEN:
        return ""
    skips, mlps = (name in curves and graded(curves[name]) is not Grade.COLLAPSES for name in ("san+skip", "san+mlp"))
    both_known = "san+skip" in curves and "san+mlp" in curves
    if graded(curves["san"]) is not Grade.COLLAPSES:
        more = [f"with {part} {_kept(curves[name])}" for name, part in _PARTS.items() if name in curves]
        return f"; attention alone would {', '.join([_would(curves['san']), *more])}"
    if grade is Grade.COLLAPSES:
        hopeless = both_known and not skips and not mlps
        return ", and neither skips nor MLPs save it" if hopeless else "; attention alone would collapse too"
    if not both_known:
        return "; attention alone would collapse"
    saviours = {
        (True, True): "skips or MLPs, either of them,",
        (True, False): "skips",
        (False, True): "MLPs",
        (False, False): "it takes skips and MLPs together to",
    }
    return f"; attention alone would collapse, and {saviours[skips, mlps]} save it from that"


_PARTS = {"san+skip": "skips", "san+mlp": "MLPs"}


def _would(mean: Sequence[float]) -> str:
    return "give no finite number" if graded(mean) is Grade.BROKEN else f"keep {_kept(mean)}"


def _kept(mean: Sequence[float]) -> str:
    """Return `62%`, or what became of the tokens instead."""
    if graded(mean) is Grade.COLLAPSES:
        return "nothing (it collapses)"
    kept = share_left(mean)
    return "an unknown share" if kept is None else share_words(kept)


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
    kept = share_left(mean)
    if kept is None:
        return f"{subject} does not collapse: the residual is {numeral(end, 3)} {_after(last)}."
    if kept > 1:
        left = f"{numeral(end, 3)} {_after(last)}, {numeral(start, 3)} entering block 0"
    else:
        left = f"{numeral(end, 3)} of {numeral(start, 3)} is left {_after(last)}"
    return f"{subject} keeps {share_words(kept)}{OF_TOKENS}: {left}."


def _after(depth: int) -> str:
    return f"after block {depth - 1}" if depth else "from the start"


def _ten(value: float) -> str:
    """Return the power of ten at or below a number."""
    return numeral(10.0 ** math.floor(math.log10(value)))


def place_words(depth: int, blocks: int) -> str:
    """Return `entering block 3`, or `after block 11` for the stream that leaves the last block."""
    return f"entering block {depth}" if depth < blocks else f"after block {depth - 1}"
