"""The page of a comparison: what got worse and better, the largest changes, then all surveys side by side; one file."""

from __future__ import annotations

from dataclasses import dataclass

from attnscope.core.numerals import numeral
from attnscope.records.comparison import Change, Comparison
from attnscope.records.paired_findings import IMPROVEMENTS, REGRESSIONS, Status
from attnscope.reporting.comparison.figures import difference_maps, profiles
from attnscope.reporting.comparison.settings import setting_notes
from attnscope.reporting.comparison.sides import finding_sides, headline_sides, provenance_sides
from attnscope.reporting.comparison.words import (
    EFFECT,
    MOST_OF_A_MEASURE,
    Row,
    change_title,
    change_words,
    labels,
    largest_changes,
    names,
    row,
    unit,
    values,
    verdict,
)
from attnscope.reporting.document import page
from attnscope.reporting.survey.words import corpus_words

MOST_CHANGES = 12
MOST_LINES, MOST_MAPS = 6, 8  # pictures in sight, full rows on a desk; the others are folded
GROUPS: tuple[tuple[str, tuple[Status, ...]], ...] = (
    ("Worse or new", REGRESSIONS),
    ("Better or gone", IMPROVEMENTS),
    ("Changed, neither better nor worse", ("changed",)),
    ("The same", ("same",)),
)


def render(found: Comparison) -> str:
    """The page as text. Equal records give equal pages."""
    tables = [survey.table() for survey in found.surveys]
    lines = profiles(found, tables)
    maps = difference_maps(found, tables) if len(found.surveys) == 2 else ()
    return page(
        "comparison.html",
        verdict=verdict(found),
        figures=lines,
        styles=("comparison.css",),
        scripts=("comparison.js",),
        names=names(found),
        labels=labels(found),
        corpora=[", ".join(corpus_words(survey)) for survey in found.surveys],
        notes=setting_notes(found),
        groups=_groups(found),
        changes=[_changed(found, change) for change in largest_changes(found, MOST_CHANGES)],
        change_heading=change_words(found),
        effect=EFFECT,
        most_of_a_measure=MOST_OF_A_MEASURE,
        findings=finding_sides(found),
        headlines=headline_sides(found, tables),
        lines=lines,
        maps=maps,
        places=len({(one.before.stack, one.before.site) for one in maps}),
        data={"maps": [one.to_json() for one in maps], "names": list(names(found))},
        most_lines=MOST_LINES,
        most_maps=MOST_MAPS,
        provenance=provenance_sides(found),
        thresholds=sorted(vars(found.thresholds).items()),
    )


def _groups(found: Comparison) -> list[tuple[str, list[Row]]]:
    """Rows of findings under the heading of what became of them; empty groups are left out."""
    told = [(heading, [row(found, pair) for pair in found.findings if pair.status in some]) for heading, some in GROUPS]
    return [(heading, rows) for heading, rows in told if rows]


@dataclass(frozen=True)
class Changed:
    """A number that moved, as a row of the table."""

    survey: int
    title: str
    before: str
    after: str
    difference: str
    unit: str
    effect: str


def _changed(found: Comparison, change: Change) -> Changed:
    before, after = values(change)
    sign = "+" if change.difference > 0 else ""
    return Changed(
        survey=change.survey,
        title=change_title(found, change),
        before=before,
        after=after,
        difference=f"{sign}{numeral(change.difference, 3)}",
        unit=unit(found, change),
        effect=f"{change.effect:+.1f}",
    )
