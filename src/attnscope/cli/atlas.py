"""`attnscope atlas`: attention in real models, and what is usual in them. Needs no torch."""

from __future__ import annotations

from typing import Annotated

import typer

from attnscope.cli.options import SAVE, json_option, with_requests
from attnscope.cli.output import page_path, print_json
from attnscope.cli.runner import Output


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
    from attnscope.reports.record import Record
    from attnscope.reports.terminal import print_record

    whole = twin()
    record: Record = whole if name is None else place(whole[name])
    if output.save is not None:
        record.save(output.save)
    if output.out is not None:
        record.write_page(page_path(output.out))
    if output.as_json:
        print_json(record.to_json())
    else:
        print_record(record, files={"Page": output.out, "Record": output.save}, verbose=output.verbose)
