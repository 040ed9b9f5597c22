"""The `attnscope` command. Bad input gives one sentence on standard error and exit code 2. Does not import torch."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Annotated

import typer

from attnscope.cli.atlas import atlas
from attnscope.cli.capacity import capacity
from attnscope.cli.catalog import cite, measures, variants
from attnscope.cli.collapse import collapse
from attnscope.cli.compare import compare
from attnscope.cli.compile import compile
from attnscope.cli.doctor import doctor
from attnscope.cli.explain import explain
from attnscope.cli.export import export
from attnscope.cli.files import PathCheckingCommand
from attnscope.cli.help import WHAT_IS_WRITTEN, WholeHelpGroup
from attnscope.cli.merge import merge
from attnscope.cli.output import (
    CLOSED_OUTPUT,
    REFUSED,
    code_after_flush,
    code_of,
    crashed,
    is_stream_error,
    open_closed_streams,
    output_was_closed,
    say,
)
from attnscope.cli.paths import paths
from attnscope.cli.report import report
from attnscope.cli.reproduce import reproduce
from attnscope.cli.runner import INTERRUPTED
from attnscope.cli.scan import scan
from attnscope.cli.timeline import timeline
from attnscope.cli.treat import treat
from attnscope.cli.view import view
from attnscope.core.errors import RefusalError, refuse_missing_torch
from attnscope.core.progress import exit_code, ignore_signals, stoppable

# Plain help: formatting it with rich would take longer than the rest of `attnscope --help`.
app = typer.Typer(
    name="attnscope",
    cls=WholeHelpGroup,
    help="See what attention in a transformer does, and whether depth is destroying it. Begin with: attnscope scan "
    "pocket",
    epilog=WHAT_IS_WRITTEN,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
for command in (
    *(scan, report, compare, atlas, export, merge, measures, collapse, paths, explain, view, compile, capacity),
    *(variants, treat, timeline, reproduce, cite, doctor),
):
    app.command(cls=PathCheckingCommand)(command)


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        from attnscope import __version__

        typer.echo(__version__)
        raise typer.Exit


def run() -> None:
    """Run the console entry point. Only this function sets signal handlers; importing attnscope does not."""
    open_closed_streams()
    with stoppable():
        code = None
        with suppress(KeyboardInterrupt):  # a second signal, while the first was being handled
            code = _code()
        if code is None:
            code = exit_code()
        if code == exit_code():  # inside `stoppable`, so that the old handlers get no signal
            ignore_signals()
    sys.exit(code_after_flush(code))


def _code() -> int:
    try:
        with refuse_missing_torch():
            app()
    except SystemExit as leaving:  # typer always ends like this; commands exit with 130 for both signals
        if output_was_closed(leaving):
            return CLOSED_OUTPUT
        return exit_code() if leaving.code == INTERRUPTED else int(leaving.code or 0)
    except RefusalError as refusal:
        say(refusal.sentence)
        return REFUSED
    except Exception as error:
        if isinstance(error, OSError) and (error.filename is not None or is_stream_error(error)):
            return code_of(error)
        return crashed(error)
    return 0


if __name__ == "__main__":
    run()
