"""`attnscope measures`: the catalog."""

from __future__ import annotations

from typing import Annotated

import typer


def measures(
    name: Annotated[str | None, typer.Argument(help="One measure, in full.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the cards as JSON.")] = False,
) -> None:
    """List what can be measured, with unit, range and source."""
    from attnscope.cli.output import print_json
    from attnscope.core.measure import measure_cards
    from attnscope.core.registry import refuse_unknown_measures

    if name is not None:
        refuse_unknown_measures([name])
    cards = [card for card in measure_cards().values() if name in (None, card.name, card.group, "all")]
    if as_json:
        print_json([card.to_json() for card in cards])
        return
    from rich.console import Console

    from attnscope.reports.catalog import show_card, show_measures

    console = Console(highlight=False)
    for shown in map(show_card, cards) if name else [show_measures(cards)]:
        console.print(shown)
