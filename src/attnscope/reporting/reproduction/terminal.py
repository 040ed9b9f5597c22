"""A reproduction in a terminal: the verdict, one row for each claim, then what was remarked."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnscope.core.visible import clean
from attnscope.records.reproduction import Reproduction
from attnscope.reporting.reproduction.words import measured_words, run_words, verdict
from attnscope.reporting.terminal import titled

COLOURS = {"reproduced": "green", "not reproduced": "yellow", "contradicted": "red", "not run": "dim"}
LEVELS = {"calm": "bold green", "info": "bold", "warning": "bold yellow", "critical": "bold red"}


def show(found: Reproduction) -> RenderableType:
    """What a console prints."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("verdict", "claim", "expected", "measured"):
        table.add_column(heading, no_wrap=heading == "verdict")
    for claim in found.claims:
        table.add_row(
            Text(claim.verdict, style=COLOURS[claim.verdict]),
            Text(clean(claim.statement)),
            Text(clean(claim.expected)),
            Text("\n".join(map(clean, measured_words(claim))) or "nothing"),
        )
    remarks = (Text(f"· {clean(remark)}") for remark in found.remarks)
    told = verdict(found)
    first = Text.assemble("\n", (clean(told.sentence), LEVELS[told.level]))
    return Group(titled(found.title, run_words(found)), first, table, *remarks)
