"""`attnscope measures`, `attnscope variants` and `attnscope cite`: lists of what attnscope knows."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from attnscope.cli.output import print_json

CardsAsJson = Annotated[bool, typer.Option("--json", help="Print the cards as JSON.")]


def measures(
    name: Annotated[str | None, typer.Argument(help="Show the whole card of one measure.")] = None,
    as_json: CardsAsJson = False,
) -> None:
    """List what can be measured, with unit, range and source."""
    from attnscope.core.measure import measure_cards
    from attnscope.core.registry import refuse_unknown_measures

    if name is not None:
        refuse_unknown_measures([name])
    cards = [card for card in measure_cards().values() if name in (None, card.name, card.group, "all")]
    if as_json:
        print_json([card.to_json() for card in cards])
        return
    from attnscope.reports.catalog import show_card, show_measures

    _print(*map(show_card, cards) if name else [show_measures(cards)])


def variants(
    name: Annotated[str | None, typer.Argument(help="Show the whole card of one variant.")] = None,
    remedies: Annotated[
        bool, typer.Option("--remedies", help="Show which remedies are for which finding (see `attnscope treat`).")
    ] = False,
    as_json: CardsAsJson = False,
) -> None:
    """List the published forms of attention that can replace a model's own, with their cost and source, and whether
    they leave its output unchanged before training."""
    from attnscope.core.finding import TABLE
    from attnscope.core.registry import refuse_unknown_variant
    from attnscope.core.variant import variant_cards

    if name is not None:
        refuse_unknown_variant(name)
    known = variant_cards()
    cards = list(known.values()) if name is None else [known[name]]
    if as_json and remedies:
        print_json([{"finding": row.finding, "remedies": list(row.remedies), "why": row.why} for row in TABLE])
        return
    if as_json:
        print_json([card.to_json() for card in cards])
        return
    from attnscope.reports.catalog import show_remedies, show_variant, show_variants

    _print(show_remedies(TABLE) if remedies else show_variants(cards) if name is None else show_variant(cards[0]))


def cite(
    name: Annotated[
        str | None,
        typer.Argument(
            help="The name of a measure, variant, construction, explanation, finding, alarm rule or paper, an arXiv "
            "number, or all. Default: attnscope itself.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the entries as JSON.")] = False,
) -> None:
    """Print the BibTeX entries of the papers behind a measure, a variant or a verdict."""
    from attnscope.papers.cite import cite as twin

    citation = twin(name)
    if as_json:
        print_json(citation.to_json())
    else:
        typer.echo(str(citation))


def _print(*parts: Any) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    for part in parts:
        console.print(part)
