"""A capacity in a notebook: what each construction needs."""

from __future__ import annotations

from html import escape

from attnscope.records.capacity import Capacity
from attnscope.reporting.capacity.words import width_words


def html(found: Capacity) -> str:
    rows = "".join(
        f"<tr><th>{escape(need.method)}</th><td>{escape(width_words(need))}</td></tr>" for need in found.needs
    )
    floor = found.bounds["universal"].width
    title = f"n = {found.n}, k = {found.k}, {found.dtype}: width needed (keys for all patterns: at least {floor})"
    return f"<p>{escape(title)}</p><table>{rows}</table>"
