"""`attnscope timeline`: how attention changed during training, from run folders or checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from attnscope.cli.options import chart_option, json_option, max_tokens_option, samples_option, with_requests
from attnscope.cli.runner import Output, running
from attnscope.core.errors import RefusalError


@with_requests(
    out=typer.Option(
        help="Folder for timeline.html (and timeline.json of checkpoints). Default: the folder of the run or "
        "of the checkpoints.",
        metavar="FOLDER",
    ),
    chart=chart_option("the loss and the most informative measure"),
    as_json=json_option("all looks"),
)
def timeline(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Run folders that `attnscope.watch` wrote; or checkpoints (or the folder that holds them), which are "
            "scanned.",
            metavar="RUN",
        ),
    ],
    live: Annotated[
        bool,
        typer.Option(
            "--live",
            help="Follow one RUN in the terminal while it is trained elsewhere: alarms, loss, every measure as a "
            "line, tokens a second. q quits.",
        ),
    ] = False,
    refresh: Annotated[float, typer.Option(help="With --live: seconds between two refreshes.", min=0.1)] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="With --live: print the run as it is now, and exit.")] = False,
    measures: Annotated[
        str | None, typer.Option(help="For checkpoints: measures or sets of them.", metavar="LIST")
    ] = None,
    samples: Annotated[int | None, samples_option("16", "For checkpoints")] = None,
    max_tokens: Annotated[
        int | None, max_tokens_option("256, or the model's maximum length if that is shorter", "For checkpoints")
    ] = None,
    corpus: Annotated[str | None, typer.Option(help="For checkpoints: the text they read.", metavar="CORPUS")] = None,
    output: Output = Output(),
) -> None:
    """How did attention change during training? Draws measures over training steps, for one RUN, several
    runs, or checkpoints."""
    from attnscope.cli.options import check_corpus, check_measures
    from attnscope.commands.timeline.run import needs_torch
    from attnscope.commands.timeline.run import timeline as twin

    if live:
        from attnscope.cli.live import live as follow

        if len(runs) > 1:
            raise RefusalError("--live follows one run at a time: name a single folder.")
        follow(runs[0], refresh, once)
        return
    if once:
        raise RefusalError("--once needs --live: add it, or leave --once out.")
    words: dict[str, Any] = {"measures": measures, "samples": samples, "max_tokens": max_tokens, "corpus": corpus}
    first, scanned = runs[0], needs_torch(*runs)
    own = first if first.is_dir() else first.parent
    if scanned:
        check_corpus(corpus)
        check_measures(measures or "default")
        own = first.resolve().parent if (first / "config.json").is_file() else first
    with running(output, output.out or own, "the timeline") as run:
        record = twin(
            *runs, progress=run.progress, **{name: value for name, value in words.items() if value is not None}
        )
        if scanned:
            run.keep(record, "timeline.json", "timeline.html")
        else:  # a run is already saved in its folder
            page = record.write_page(run.folder / "timeline.html")
            run.files = {"Page": page, "Record": own if len(runs) == 1 else None}
    run.tell(record)
