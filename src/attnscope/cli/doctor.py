"""`attnscope doctor`: check that attnscope works on this machine, and list what is missing."""

from __future__ import annotations

from typing import Annotated

import typer

from attnscope.cli.options import json_option


def doctor(
    clear_cache: Annotated[
        bool, typer.Option("--clear-cache", help="Empty the cache of measurements, and exit.")
    ] = False,
    as_json: Annotated[bool, json_option("what was found")] = False,
) -> None:
    """Check this installation: versions, devices, extras, the cache, and a verified scan of the embedded model."""
    from attnscope.cli.output import print_json

    if clear_cache:
        from attnscope.core.files import cache_folder
        from attnscope.core.files import clear_cache as clear

        freed = clear()
        if as_json:
            print_json({"folder": str(cache_folder()), "freed": freed})
        else:
            typer.echo(f"emptied {cache_folder()}, which held {freed / 1e6:.1f} MB.")
        return
    from attnscope.commands.doctor.run import doctor as look

    checkup = look()
    if as_json:
        print_json(checkup.to_json())
    else:
        from rich.console import Console

        from attnscope.commands.doctor.record import show_checkup

        Console(highlight=False).print(show_checkup(checkup))
    if not checkup.well:
        raise typer.Exit(1)
