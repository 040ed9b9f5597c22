"""`attnscope measures`: the catalog."""

from __future__ import annotations

from typing import Annotated

import typer


def measures(
    name: Annotated[str | None, typer.Argument(help="One measure, in full.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the cards as JSON.")] = False,
) -> None:
    """List what can be measured, with unit, range and source."""
    from attnscope.cli.output import print_card, print_catalog, print_json
    from attnscope.core.registry import choose
    from attnscope.core.registry import measures as catalog

    cards = [m.card for m in (choose([name]) if name else catalog().values())]
    if as_json:
        print_json([card.to_json() for card in cards])
    elif name:
        for card in cards:
            print_card(card)
    else:
        print_catalog(cards)
