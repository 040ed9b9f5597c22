"""How a record shows itself in a notebook: its verdict, its main chart, its sentences, and its first tables.

All text is escaped. The chart is SVG in the light theme on a white ground, so that it can be read in a dark notebook.
A chart that is refused, for example because nothing was measured, is left out.
"""

from __future__ import annotations

from html import escape

from attnscope.core.errors import RefusalError
from attnscope.reports.document import Document, Table
from attnscope.reports.export import numbered, render
from attnscope.reports.record import Record, ask, verdict
from attnscope.reports.theme import specification

MARKS = {"calm": "✓", "note": "ⓘ", "warning": "⚠", "critical": "✕"}
MOST_SENTENCES = MOST_ROWS = 12


def html(record: Record) -> str:
    """Return the division that `_repr_html_` gives."""
    concluded = verdict(record)
    return (
        f"<div><p>{escape(repr(record))}</p><p><b>{MARKS[concluded.level]} {escape(concluded.sentence)}</b></p>"
        f"{picture(record)}{ask(record, 'html') or _paragraphs(record.sentences()[1:])}</div>"
    )


def document_html(document: Document) -> str:
    """Return sentences, cards and tables of a document, without its details."""
    sections = [section for section in document.sections if not section.detail]
    cards = [card for section in sections for card in section.cards]
    judged = tuple((card.label, card.sentence, *("; ".join(lines) for _, lines in card.facts)) for card in cards)
    tables = [Table((), judged), *(table for section in sections for table in section.tables)]
    return _paragraphs((*document.about, *document.sentences[1:])) + "".join(map(_table, tables))


def picture(record: Record) -> str:
    """Return the main chart as SVG."""
    try:
        chart = record.chart()
    except RefusalError:
        return ""
    svg = render(specification(chart, "light", validate=False), ".svg").decode()
    return f"<div>{numbered(svg, f'attnscope-{record.KIND}')}</div>"


def _paragraphs(sentences: tuple[str, ...]) -> str:
    return "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences[:MOST_SENTENCES])


def _table(table: Table) -> str:
    rows = [table.heading, *table.rows[:MOST_ROWS]] if table.heading else table.rows[:MOST_ROWS]
    lines = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>" if table.rows else ""
