"""`attnscope timeline`: what training did to attention, from run folders or checkpoints."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnscope.cli.options import Verbose, chart_option, json_option, max_tokens_option, samples_option

if TYPE_CHECKING:
    from attnscope.commands.timeline.read import RunReader

# `attnscope watch`: a run in the terminal while it is written elsewhere.

LEAVE = "qQ\x04"
Pressed = Callable[[float], bool]


def watch(
    run: Annotated[Path, typer.Argument(help="The folder that a watch writes its run into.", metavar="RUN")],
    refresh: Annotated[float, typer.Option(help="Seconds from one look at the folder to the next.", min=0.1)] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print the run as it is now, and stop.")] = False,
) -> None:
    """Follow a RUN while it is trained elsewhere: alarms, loss, every measure as a line, tokens a second. q leaves."""
    from rich.console import Console

    from attnscope.commands.timeline.read import RunReader

    reader = RunReader(run)
    console = Console(highlight=False)
    if once or not console.is_terminal or not sys.stdin.isatty():
        from attnscope.commands.timeline.terminal import frame
        from attnscope.reports.terminal import print_screen

        size = console.size
        print_screen(frame(reader.timeline, width=size.width, height=60, live=False), {}, console)
        return
    try:
        _follow(reader, console, refresh)
    except KeyboardInterrupt:  # Ctrl-C leaves as q does: nothing is lost, the run is somebody else's
        return


def _follow(reader: RunReader, console: object, refresh: float) -> None:
    from rich.console import Console
    from rich.live import Live

    from attnscope.commands.timeline.terminal import frame

    assert isinstance(console, Console)

    def now() -> object:
        size = console.size
        return frame(reader.timeline, width=size.width, height=size.height, silent=_silent(reader.folder))

    with _single_keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            reader.more()
            live.update(now(), refresh=True)  # type: ignore[arg-type]
            if pressed(refresh):
                return


def _silent(folder: Path) -> float | None:
    from attnscope.commands.timeline.read import LOOKS

    try:
        return max(0.0, time.time() - (folder / LOOKS).stat().st_mtime)
    except OSError:
        return None


@contextmanager
def _single_keys() -> Iterator[Pressed]:
    """Keys without Enter, and not shown; the terminal is as it was afterwards, whatever happens."""
    try:
        import termios
        import tty
    except ImportError:  # not on Windows: there Ctrl-C leaves
        yield _nothing_pressed
        return
    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    try:
        tty.setcbreak(number)
        yield lambda seconds: _pressed(number, seconds)
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


def _nothing_pressed(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def _pressed(number: int, seconds: float) -> bool:
    """Whether a key that leaves came within so many seconds, or nobody can press any more."""
    import select

    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        ready, _, _ = select.select([number], [], [], left)
        if ready:
            typed = os.read(number, 64).decode(errors="replace")
            if not typed or any(key in LEAVE for key in typed):
                return True
    return False


PAGE, DATA = "timeline.html", "timeline.json"


def timeline(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Run folders that a watch wrote, side by side; or checkpoints (or the folder that holds them), which "
            "are scanned.",
            metavar="RUN",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for timeline.html (and timeline.json of checkpoints). Default: the run's own folder; of "
            "checkpoints, the one they are in.",
            metavar="FOLDER",
        ),
    ] = None,
    measures: Annotated[str | None, typer.Option(help="Of checkpoints: what is measured.", metavar="LIST")] = None,
    samples: Annotated[int | None, samples_option("of checkpoints: 16")] = None,
    max_tokens: Annotated[int | None, max_tokens_option("of checkpoints: 256, or what the model takes")] = None,
    corpus: Annotated[str | None, typer.Option(help="Of checkpoints: the text they read.", metavar="CORPUS")] = None,
    chart: Annotated[Path | None, chart_option("the loss, and the measure that tells most")] = None,
    verbose: Verbose = False,
    as_json: Annotated[bool, json_option("all looks")] = False,
) -> None:
    """What did training do to attention? A page with a step axis: of a RUN, of several, or of checkpoints."""
    from attnscope.cli.files import checked_file
    from attnscope.cli.options import check_corpus, check_measures
    from attnscope.cli.output import output_folder
    from attnscope.cli.progress import showing
    from attnscope.commands.timeline.run import needs_torch
    from attnscope.commands.timeline.run import timeline as run

    if chart is not None:
        checked_file(chart, "--chart", (".html", ".json", ".png", ".svg"))
    words: dict[str, Any] = {"measures": measures, "samples": samples, "max_tokens": max_tokens, "corpus": corpus}
    scan = {name: value for name, value in words.items() if value is not None}
    scanned = needs_torch(*runs)
    if scanned:
        check_corpus(corpus)
        check_measures(measures or "default")
        place = out or _place_of_checkpoints(runs[0])
    else:
        place = out or (runs[0] if runs[0].is_dir() else runs[0].parent)
    try:
        with output_folder(place) as folder, showing() as progress:
            found = run(*runs, progress=progress, **scan)
            data = found.save(folder / DATA) if scanned else None
            progress("drawing the page", 0, 0)
            page = found.write_page(folder / PAGE)
    except KeyboardInterrupt:
        typer.echo("attnscope: interrupted before the timeline was done; nothing is written.", err=True)
        raise typer.Exit(130) from None
    from attnscope.cli.output import tell

    tell(found, data=data or _place_of_runs(runs), page=page, chart=chart, as_json=as_json, verbose=verbose)


def _place_of_runs(runs: list[Path]) -> Path | None:
    """The record of a run is its own folder; several have several, and none of them is where the page is."""
    return None if len(runs) > 1 else runs[0] if runs[0].is_dir() else runs[0].parent


def _place_of_checkpoints(first: Path) -> Path:
    return first.resolve().parent if (first / "config.json").is_file() else first
