"""`attnscope timeline`: what training did to attention, from run folders or checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from attnscope.cli.options import Verbose, chart_option, json_option, max_tokens_option, samples_option

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
    from attnscope.cli.names import check_corpus, check_measures
    from attnscope.cli.output import output_folder
    from attnscope.cli.progress import showing
    from attnscope.following.timeline import needs_torch
    from attnscope.following.timeline import timeline as run

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
