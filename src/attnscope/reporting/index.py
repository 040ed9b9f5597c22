"""One page that links others: of each record its question, its verdict and the command that made it.

page = index("pocket", [Linked("Is it healthy?", "scan pocket", "pocket/report.html", verdict(survey)), ...])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnscope.reporting.document import page
from attnscope.reporting.verdict import Verdict


@dataclass(frozen=True)
class Linked:
    """A page: what it answers, what made it, where it lies beside the index, and what it concludes."""

    question: str
    command: str
    place: str
    verdict: Verdict


def index(subject: str, linked: Sequence[Linked]) -> str:
    """The page as text, under the verdict of the first that it links to."""
    return page(
        "index.html", verdict=linked[0].verdict, styles=("index.css",), subject=subject, linked=linked, provenance=()
    )
