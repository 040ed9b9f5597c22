"""A reproduction in a notebook: the claims as a table. All text is escaped."""

from __future__ import annotations

from html import escape

from attnscope.records.reproduction import Reproduction
from attnscope.reporting.reproduction.words import measured_words


def html(found: Reproduction) -> str:
    rows = "".join(
        f"<tr><th>{escape(claim.verdict)}</th><td>{escape(claim.statement)}</td><td>{escape(claim.expected)}</td>"
        f"<td>{'<br>'.join(map(escape, measured_words(claim)))}</td></tr>"
        for claim in found.claims
    )
    said = "".join(f"<p>{escape(remark)}</p>" for remark in found.remarks)
    title = f"<p><b>{escape(found.title)}</b>, preset {escape(found.preset)}</p>"
    return f"{title}<table>{rows}</table>{said}"
