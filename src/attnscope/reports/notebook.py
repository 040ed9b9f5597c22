"""The notebook view of a record: its verdict, main chart, sentences and first tables.

All text is escaped. The chart is SVG in the light theme on a white background, so that it can be read in a dark
notebook. A chart that is refused, for example because nothing was measured, is left out.
"""

from __future__ import annotations

from html import escape

from attnscope.core.errors import RefusalError
from attnscope.reports.colours import colour_of, ink
from attnscope.reports.document import Document, Table
from attnscope.reports.export import numbered, render
from attnscope.reports.record import Record, ask, verdict
from attnscope.reports.tabs import Shade, ShadedText, Tab
from attnscope.reports.theme import specification

MARKS = {"calm": "✓", "note": "ⓘ", "warning": "⚠", "critical": "✕"}
MOST_SENTENCES = MOST_ROWS = 12


def html(record: Record) -> str:
    """Return the HTML for `_repr_html_`."""
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
    shades = "".join(_shaded(section.tabs[0]) for section in sections if section.tabs)
    return _paragraphs((*document.about, *document.sentences[1:])) + shades + "".join(map(_table, tables))


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


def _shaded(tab: Tab) -> str:
    """Return the shaded texts of a tab, on background colours of the light theme."""
    texts = (block for block in tab.blocks if isinstance(block, ShadedText))
    lines = ("".join(map(_piece, text.pieces)) for text in texts)
    return f"<p>{escape(tab.title)}:</p>" + "".join(f'<p style="white-space: pre-wrap">{line}</p>' for line in lines)


def _piece(shade: Shade) -> str:
    ground = colour_of(shade.colour) if shade.colour else ""
    colours = f"background: {ground}; color: {ink(ground)}" if ground else ""
    return f'<span style="{colours}" title="{escape(shade.reading)}">{escape(shade.text)}</span>'


def _table(table: Table) -> str:
    rows = [table.heading, *table.rows[:MOST_ROWS]] if table.heading else table.rows[:MOST_ROWS]
    lines = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>" if table.rows else ""
