"""The `attnscope` command. Bad input is one sentence on standard error and exit code 2; nothing here imports torch."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Annotated

import typer

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
    NOBODY_READS,
    REFUSED,
    code_after_flush,
    code_of,
    nobody_read,
    of_a_stream,
    open_closed_streams,
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
from attnscope.core.errors import RefusalError, asking_for_torch
from attnscope.core.progress import exit_code, leave_in_peace, stoppable

# Plain help: rich's formatting of it would cost more time than everything else in `attnscope --help`.
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
    *(scan, report, compare, export, merge, measures, collapse, paths, explain, view, compile, capacity, variants),
    *(treat, timeline, reproduce, cite, doctor),
):
    app.command(cls=PathCheckingCommand)(command)


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if version:
        from attnscope import __version__

        typer.echo(__version__)
        raise typer.Exit


def run() -> None:
    """Run the console entry point. Signal handlers are set here only: importing attnscope sets none."""
    open_closed_streams()
    with stoppable():
        code = None
        with suppress(KeyboardInterrupt):  # a second one, while the first was being answered
            code = _code()
        if code is None:
            code = exit_code()
        if code == exit_code():  # still inside, so that no signal finds the old handlers
            leave_in_peace()
    sys.exit(code_after_flush(code))


def _code() -> int:
    try:
        with asking_for_torch():
            app()
    except SystemExit as leaving:  # how typer always ends; commands exit with 130 for both signals
        if nobody_read(leaving):
            return NOBODY_READS
        return exit_code() if leaving.code == INTERRUPTED else int(leaving.code or 0)
    except RefusalError as refusal:
        say(refusal.sentence)
        return REFUSED
    except OSError as error:
        if error.filename is None and not of_a_stream(error):
            raise
        return code_of(error)
    return 0


if __name__ == "__main__":
    run()
