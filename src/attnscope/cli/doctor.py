"""`attnscope doctor`: does everything work here, and what is missing?"""

from __future__ import annotations

from typing import Annotated

import typer

from attnscope.cli.options import json_option


def doctor(
    clear_cache: Annotated[
        bool, typer.Option("--clear-cache", help="Empty the folder of kept measurements, and stop.")
    ] = False,
    as_json: Annotated[bool, json_option("what was found")] = False,
) -> None:
    """Look at this installation: versions, devices, extras, the cache, and a verified scan of the embedded model."""
    from attnscope.cli.output import print_json

    if clear_cache:
        from attnscope.core.files import cache_folder
        from attnscope.core.files import clear_cache as clear

        freed = clear()
        if as_json:
            print_json({"folder": str(cache_folder()), "freed": freed})
        else:
            typer.echo(f"{cache_folder()} is empty; {freed / 1e6:.1f} MB were in it.")
        return
    from attnscope.commands.doctor.run import doctor as look

    found = look()
    if as_json:
        print_json(found.to_json())
    else:
        from rich.console import Console

        from attnscope.commands.doctor.record import show_checkup

        Console(highlight=False).print(show_checkup(found))
    if not found.well:
        raise typer.Exit(1)
