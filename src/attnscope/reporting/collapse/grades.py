"""How much of what tells tokens apart a variant keeps, in five grades: the words, the verdict and its level follow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum

COLLAPSED = 1e-3  # a residual this small beside the tokens: they are one token, for all that follows
NEARLY_ALL, MOST, HALF = 0.9, 0.6, 0.4
"""Shares of the first residual that are left at the end."""


class Grade(IntEnum):
    """From worst to best."""

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
    """Residuals that once fell below `COLLAPSED` count as collapsed: what grows again later is no longer the tokens."""
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
    """The last residual over the first; 1 where there was nothing to lose or nothing is known of the first."""
    return mean[-1] / mean[0] if math.isfinite(mean[0]) and mean[0] > 0 else 1.0


def share_words(share: float) -> str:
    """`92%`, and `less than 1%` where that would round to nothing."""
    return "less than 1%" if share < 0.01 else f"{100 * share:.0f}%"
