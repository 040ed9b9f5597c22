"""A decomposition into paths in a notebook: sentences and the table of lengths. All text is escaped."""

from __future__ import annotations

from html import escape

from attnscope.records.paths import PathReport
from attnscope.reporting.paths.words import length_lines, sentences


def html(report: PathReport) -> str:
    words = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences(report)[1:])  # the first is the verdict
    head, *rows = length_lines(report)
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    table = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"{words}<table><tr>{top}</tr>{table}</table>"
