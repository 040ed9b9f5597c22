"""A reproduction in a terminal: one row for each claim; with `verbose` also what was measured and remarked."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnscope.core.visible import clean
from attnscope.records.reproduction import Reproduction
from attnscope.reporting.reproduction.words import measured_words, not_judged, run_words, verdict
from attnscope.reporting.terminal import OUTCOMES, opening


def show(found: Reproduction, *, verbose: bool = False) -> RenderableType:
    """What a console prints."""
    first = opening(verdict(found), f"{found.title}, {run_words(found)}")
    last = [Text(f"\nWhat to do with it: {clean(found.advice)}")] if found.advice else []
    if not verbose:
        return Group(*first, Text(""), _claims(found), *last)
    remarks = (Text(f"· {clean(remark)}") for remark in found.remarks)
    return Group(*first, _numbers(found), *remarks, *last)


def _claims(found: Reproduction) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column()
    for claim in found.claims:
        why = f" ({not_judged(claim)})" if claim.missing else ""
        table.add_row(Text(claim.verdict, style=OUTCOMES[claim.verdict]), Text(clean(claim.statement + why)))
    return table


def _numbers(found: Reproduction) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("verdict", "claim", "expected", "measured"):
        table.add_column(heading, no_wrap=heading == "verdict")
    for claim in found.claims:
        table.add_row(
            Text(claim.verdict, style=OUTCOMES[claim.verdict]),
            Text(clean(claim.statement)),
            Text(clean(claim.expected)),
            Text("\n".join(map(clean, measured_words(claim))) or "nothing"),
        )
    return table
