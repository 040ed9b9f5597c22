"""`attnscope variants`: the catalog of attention that can be exchanged."""

from __future__ import annotations

from typing import Annotated

import typer


def variants(
    name: Annotated[str | None, typer.Argument(help="One variant, in full.")] = None,
    remedies: Annotated[
        bool, typer.Option("--remedies", help="Which finding asks for which remedy (`attnscope treat`).")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the cards as JSON.")] = False,
) -> None:
    """List the published attentions that can be exchanged, with cost, start and source."""
    from attnscope.core.registry import refuse_unknown_variant
    from attnscope.core.variant import variant_cards

    if name is not None:
        refuse_unknown_variant(name)
    if remedies:
        _remedies(as_json)
        return
    known = variant_cards()
    cards = list(known.values()) if name is None else [known[name]]
    if as_json:
        from attnscope.cli.output import print_json

        print_json([card.to_json() for card in cards])
        return
    from rich.console import Console

    from attnscope.reports.catalog import show_variant, show_variants

    console = Console(highlight=False)
    console.print(show_variants(cards) if name is None else show_variant(cards[0]))


def _remedies(as_json: bool) -> None:
    from attnscope.core.finding import TABLE

    if as_json:
        from attnscope.cli.output import print_json

        print_json([{"finding": row.finding, "remedies": list(row.remedies), "why": row.why} for row in TABLE])
        return
    from rich.console import Console

    from attnscope.reports.catalog import show_remedies

    Console(highlight=False).print(show_remedies(TABLE))
