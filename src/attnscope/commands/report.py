"""report(record, path): the page of whatever a command found, as one self-contained HTML file.

attnscope.report(survey, "report.html", other=second_survey)
attnscope.report("out/collapse.json", "collapse.html", published="BERT")
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnscope.commands.load import load
from attnscope.core.errors import RefusalError
from attnscope.reports.page import page
from attnscope.reports.record import Record
from attnscope.reports.words import Verdict


def report(record: Record | str | Path, path: Path | str, **options: Any) -> Path:
    """Write the page of a record, or of the one that a path names; `options` are those of `reporting/KIND/page.py`."""
    if isinstance(record, str | Path):
        record = load(record)
    if not isinstance(record, Record):
        raise RefusalError(f"A record or the path of one is needed, not {type(record).__name__}.")
    return record.write_page(path, **options)


# One page that links others: of each record its question, its verdict and the command that made it.
#
# page = index("pocket", [Linked("Is it healthy?", "scan pocket", "pocket/report.html", verdict(survey)), ...])


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
