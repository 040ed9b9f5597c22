"""`attnscope atlas`: attention in real models, and what is usual in them. Needs no torch."""

from __future__ import annotations

from typing import Annotated

import typer

from attnscope.cli.options import SAVE, json_option, with_requests
from attnscope.cli.runner import Output, tell_only


@with_requests(
    out=typer.Option(help="Also write the page, with one row and one small map for each model.", metavar="FILE"),
    save=SAVE,
    as_json=json_option("all numbers"),
)
def atlas(
    name: Annotated[
        str | None,
        typer.Argument(help="A model of the atlas, to place it among the others. Default: all models.", metavar="NAME"),
    ] = None,
    output: Output = Output(),
) -> None:
    """Show what attention does in real pretrained models, and which numbers are usual.

    To place another model among them: attnscope compare MODEL --to atlas
    """
    from attnscope.commands.atlas.run import atlas as twin
    from attnscope.commands.place.run import place

    whole = twin()
    tell_only(whole if name is None else place(whole[name]), output)
