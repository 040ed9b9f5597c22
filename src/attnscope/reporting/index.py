"""One page that links others: of each record its question, its verdict and the command that made it.

page = index("pocket", [Linked("Is it healthy?", "scan pocket", "pocket/report.html", verdict(survey)), ...])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from attnscope.reporting.document import page
from attnscope.reporting.verdict import Level, Verdict


@dataclass(frozen=True)
class Linked:
    """A page: what it answers, what made it, where it lies beside the index, and what it concludes."""

    question: str
    command: str
    place: str
    verdict: Verdict


def index(subject: str, linked: Sequence[Linked]) -> str:
    """The page as text. Its own verdict is the worst of those it links to."""
    levels: tuple[Level, ...] = get_args(Level)
    worst = max((one.verdict for one in linked), key=lambda verdict: levels.index(verdict.level))
    return page("index.html", verdict=worst, styles=("index.css",), subject=subject, linked=linked, provenance=())
