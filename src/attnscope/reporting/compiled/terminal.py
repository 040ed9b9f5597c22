"""A compiled head in a terminal: what it does, in sentences; with `verbose` also its certificate."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnscope.core.visible import clean
from attnscope.records.compiled import Compiled
from attnscope.reporting.compiled.words import TOO_LARGE, certificate_lines, row_words, sentences, title_words, verdict
from attnscope.reporting.terminal import opening, section


def show(compiled: Compiled, *, verbose: bool = False) -> RenderableType:
    """What a console prints; a head that misses the accuracy is said to be failing."""
    parts = opening(verdict(compiled), title_words(compiled))
    parts += [Text(""), *(Text(clean(sentence)) for sentence in sentences(compiled)[1:])]
    if not compiled.reached:
        rows = row_words(compiled.certificate.failing_rows, compiled.certificate.failing)
        parts.append(Text(f"The head is marked as failing: it misses the accuracy in rows {rows}."))
    if verbose:
        parts += [section("Certificate"), _certificate(compiled)]
    return Group(*parts)


def _certificate(compiled: Compiled) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right", style="bold", no_wrap=True)
    table.add_column()
    for label, value, note in certificate_lines(compiled):
        table.add_row(label, Text(clean(value)), Text(clean(note), style="red" if note.startswith(TOO_LARGE) else ""))
    return table
