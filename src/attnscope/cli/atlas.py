"""`attnscope atlas`: attention in real models."""

from __future__ import annotations

from attnscope.cli.options import json_option, out_option, with_requests
from attnscope.cli.runner import Output, running


@with_requests(out=out_option("atlas.json and atlas.html", "atlas"), as_json=json_option("the atlas"))
def atlas(output: Output = Output()) -> None:
    """Attention in real pretrained models: what is usual, one row for each model, and twins with random weights."""
    from attnscope.cli.files import named_folder

    with running(output, output.out or named_folder("atlas")) as run:
        from attnscope.commands.atlas.run import atlas as twin

        found = twin()
        run.keep(found, "atlas.json", "atlas.html")
    run.tell(found)
