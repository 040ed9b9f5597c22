"""Show lists in a terminal: measures, variants, remedies, and papers that can be reproduced."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnscope.core.card import Card
from attnscope.core.experiment import PRESETS, Verdict
from attnscope.core.finding import Prescription
from attnscope.core.variant import Kind, VariantCard
from attnscope.core.words import clean
from attnscope.reports.terminal import OUTCOMES

KINDS: Mapping[Kind, str] = {
    "pattern": "replaces the softmax weights",
    "logits": "before softmax",
    "output": "changes the output of heads, or values",
    "block": "norms and residual",
    "weights": "changes parameters only",
}


@dataclass(frozen=True)
class Paper:
    """An experiment in the list of papers, with the verdicts of earlier runs."""

    name: str
    title: str
    paper: str
    summary: str
    takes: str
    on_record: tuple[str, ...]  # the verdicts of each run, one per line
    brief: tuple[str, ...]  # the verdicts of each preset, in a few words
    claims: tuple[tuple[Verdict, str], ...]
    advice: str = ""


def show_papers(papers: Iterable[Paper]) -> RenderableType:
    """Show one line per paper: its name, and how many claims each preset reproduced in earlier runs."""
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    for _ in PRESETS:
        table.add_column(no_wrap=True)
    table.add_row("", "", *(Text(preset, style="dim") for preset in PRESETS))
    for one in papers:
        table.add_row(*map(Text, map(clean, (one.name, one.title, *one.brief))))
    ways = (
        "Claims reproduced, of all, in the runs on record of both presets; (-1): so many were contradicted. Run one: "
        "attnscope reproduce NAME. What each of them claims: attnscope reproduce --verbose"
    )
    return Group(Text(""), table, Text(f"\n{ways}", style="dim"))


def show_claims(papers: Iterable[Paper]) -> RenderableType:
    """Show every paper with its claims, and how to run one."""
    parts: list[RenderableType] = []
    for paper in papers:
        table = Table.grid(padding=(0, 2))
        for verdict, statement in paper.claims:
            table.add_row(Text(verdict, style=OUTCOMES[verdict]), Text(statement))
        parts += [
            Text.assemble("\n", (paper.name, "bold"), f"  {paper.title}  ", (f"arXiv:{paper.paper}", "dim")),
            Text(paper.summary),
            Text(paper.takes, style="dim"),
            *(Text(f"on record: {words}", style="dim") for words in paper.on_record),
            table,
            *([Text(f"What follows from it: {paper.advice}")] if paper.advice else []),
        ]
    return Group(*parts, Text("\nRun one with: attnscope reproduce NAME", style="dim"))


def show_measures(cards: Iterable[Card]) -> RenderableType:
    """Show one row for each measure."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("measure", "set", "what it says", "source"):
        table.add_column(heading, no_wrap=heading != "what it says")
    for card in cards:
        says = f"{card.summary} [{card.unit}, {_range(card)}]"
        table.add_row(*map(Text, (card.name, card.group, says, card.citation.split(",")[0])))
    return table


def show_card(card: Card) -> RenderableType:
    """Show the whole card of one measure."""
    lines = [
        Text.assemble((card.name, "bold"), f"  {card.title}"),
        Text(card.summary),
        Text(f"unit      {card.unit}"),
        Text(f"range     {_range(card)}"),
        Text(f"taken at  {', '.join(card.sites)} ({card.scope})"),
        Text(f"parts     {', '.join(card.parts)}"),
        Text(f"set       {card.group}"),
        Text(f"source    {card.citation}"),
    ]
    if card.alarm:
        lines.append(Text(f"alarm     {card.alarm.relation} {card.alarm.threshold:g}: {card.alarm.meaning}"))
    return Group(*lines)


def show_variants(cards: Iterable[VariantCard]) -> RenderableType:
    """Show one line for each variant, grouped by kind."""
    known = list(cards)
    table = Table.grid(padding=(0, 2), expand=True)
    for name in ("variant", "what it is", "time", "start"):
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1 if name == "what it is" else None)
    for kind, heading in KINDS.items():
        mine = [card for card in known if card.kind == kind]
        if mine:
            cells = ((kind, "bold"), (heading, "dim"), ("time", "dim"), ("start", "dim"))
            table.add_row(*(Text(f"\n{word}", style) for word, style in cells))
        for card in mine:
            start = "keeps" if card.keeps else "changes"
            cost = "-" if card.cost == "none" else card.cost
            table.add_row(*map(Text, map(clean, (card.name, card.title, cost, start))))
    words = (
        "time: to mix n tokens; -: no more mixing than there was. start: keeps what a trained model computes, or "
        "changes it at once.\nFor the formula and source of one: attnscope variants NAME"
    )
    return Group(table, Text(f"\n{words}", style="dim"))


def show_variant(card: VariantCard) -> RenderableType:
    """Show the whole card of one variant."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for term, words in (("kind", f"{card.kind}: {KINDS[card.kind]}"), *card.facts()):
        table.add_row(*map(Text, map(clean, (term, words))))
    head = Text.assemble((card.name, "bold"), f"  {card.title}")
    return Group(head, Text(card.summary), table)


def _range(card: Card) -> str:
    return f"{card.low:g} and more" if math.isinf(card.high) else f"{card.low:g} to {card.high:g}"


def show_remedies(rows: Iterable[Prescription]) -> RenderableType:
    """Show which remedies are for which finding, and why."""
    parts: list[RenderableType] = [Text("")]
    for row in rows:
        parts.append(Text.assemble((row.finding, "bold"), "  ", ", ".join(row.remedies)))
        parts.append(Text(f"  {row.why}", style="dim"))
    return Group(*parts, Text("\nTry one: attnscope treat MODEL --remedy NAME", style="dim"))
