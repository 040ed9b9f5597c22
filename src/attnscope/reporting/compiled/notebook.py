"""A compiled head in a notebook: the lines of its certificate."""

from __future__ import annotations

from html import escape

from attnscope.records.compiled import Compiled
from attnscope.reporting.compiled.words import certificate_lines, title_words


def html(compiled: Compiled) -> str:
    rows = "".join(
        f"<tr><th>{escape(label)}</th><td>{escape(value)}</td><td>{escape(note)}</td></tr>"
        for label, value, note in certificate_lines(compiled)
    )
    return f"<p>{escape(title_words(compiled))}</p><table><tbody>{rows}</tbody></table>"
