"""How a record shows itself in a notebook: its verdict, its main chart, and what else its kind has to show.

A chart that cannot be drawn (nothing was measured along it) leaves its place empty. All text is escaped, and the chart
is an SVG of its own, in the light theme on a white ground, so that it is read in a dark notebook too.
"""

from __future__ import annotations

from html import escape

from attnscope.core.errors import RefusalError
from attnscope.reports.export import numbered, render
from attnscope.reports.record import Record, ask, verdict
from attnscope.reports.theme import specification

MARKS = {"calm": "✓", "note": "ⓘ", "warning": "⚠", "critical": "✕"}
_MOST_SENTENCES = 12


def html(record: Record) -> str:
    """The division that `_repr_html_` gives."""
    found = verdict(record)
    rest = ask(record, "html") or _sentences(record, found.sentence)
    return (
        f"<div><p>{escape(repr(record))}</p><p><b>{MARKS[found.level]} {escape(found.sentence)}</b></p>"
        f"{picture(record)}{rest}</div>"
    )


def picture(record: Record) -> str:
    """The main chart as SVG."""
    try:
        chart = record.chart()
    except RefusalError:
        return ""
    svg = render(specification(chart, "light", validate=False), ".svg").decode()
    return f"<div>{numbered(svg, f'attnscope-{record.KIND}')}</div>"


def _sentences(record: Record, said: str) -> str:
    others = [sentence for sentence in record.sentences() if sentence != said]
    return "".join(f"<p>{escape(sentence)}</p>" for sentence in others[:_MOST_SENTENCES])
