"""`attnscope cite`: BibTeX of what things stand on."""

from __future__ import annotations

from typing import Annotated

import typer


def cite(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A measure, variant, construction, explanation, finding, alarm rule or paper by its name, an arXiv "
            "number, or all; without one, attnscope itself.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the entries as JSON.")] = False,
) -> None:
    """Print BibTeX of what a number, a variant or a verdict stands on."""
    from attnscope.papers.cite import cite as cited

    found = cited(name)
    if as_json:
        from attnscope.cli.output import print_json

        print_json(found.to_json())
    else:
        typer.echo(str(found))
