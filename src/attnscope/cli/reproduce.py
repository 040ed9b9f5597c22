"""`attnscope reproduce`: a paper's claims, run again, with a verdict beside each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnscope.cli.options import json_option, out_option, resume_option
from attnscope.core.visible import clean

if TYPE_CHECKING:
    from attnscope.core.experiment import Experiment


def reproduce(
    paper: Annotated[
        str | None,
        typer.Argument(help="Which paper, by name or arXiv number; without one, all are listed.", show_default=False),
    ] = None,
    preset: Annotated[str, typer.Option(help="quick (about a minute) or paper (the sizes of the paper).")] = "quick",
    seeds: Annotated[
        int | None,
        typer.Option(help="How many seeds; what the preset says where not given.", min=1, show_default=False),
    ] = None,
    out: Annotated[Path | None, out_option("results, charts and the page; attnscope-PAPER where not given.")] = None,
    resume: Annotated[bool, resume_option("an interrupted run")] = False,
    as_json: Annotated[bool, json_option("the results")] = False,
) -> None:
    """Run a paper's claims again: reproduced, not reproduced, contradicted. Any verdict is a result: exit code 0."""
    from attnscope.cli.output import output_folder, print_json
    from attnscope.cli.progress import showing

    if paper is None:
        _list(as_json)
        return
    with showing() as progress:
        progress("loading", 0, 0)
        from attnscope.reproducing.desk import FOLDER as CHECKPOINT
        from attnscope.reproducing.reproduce import named
        from attnscope.reproducing.reproduce import reproduce as run

        name = named(paper).name  # an unknown name is refused before a folder is made for it
        usual = Path(f"attnscope-{name}" if preset == "quick" else f"attnscope-{name}-{preset}")
        with output_folder(usual if out is None else out) as folder:
            if not resume and (folder / CHECKPOINT / "plan.json").exists():
                where = clean(str(folder))
                typer.echo(
                    f"attnscope: the interrupted run in {where} is replaced; --resume would go on with it.", err=True
                )
            try:
                done = run(paper, preset, seeds=seeds, out=folder, resume=resume, progress=progress)
            except KeyboardInterrupt:
                where = clean(str(folder))
                typer.echo(f"attnscope: interrupted; what is done is kept in {where}: go on with --resume.", err=True)
                raise typer.Exit(130) from None
    if as_json:
        print_json(done.to_json())
    else:
        from attnscope.records.reproduction import CHARTS, PAGE, RESULTS
        from attnscope.reporting.terminal import print_record

        print_record(done, files={"Results": folder / RESULTS, "Page": folder / PAGE, "Charts": folder / CHARTS})


def _list(as_json: bool) -> None:
    from attnscope.cli.output import print_json
    from attnscope.reproducing.reproduce import reproduce as papers

    if as_json:
        print_json([_described(one) for one in papers()])
        return
    from rich.console import Console

    from attnscope.reporting.catalog import show_papers
    from attnscope.reporting.terminal import print_screen
    from attnscope.reproducing.known import listed

    print_screen(show_papers(map(listed, papers())), {}, Console(highlight=False))


def _described(one: Experiment) -> dict[str, Any]:
    from attnscope.reproducing.known import known

    return {
        "name": one.name,
        "title": one.title,
        "paper": one.paper,
        "summary": one.summary,
        "takes": dict(one.takes),
        "seeds": dict(one.seeds),
        "claims": [{"name": c.name, "statement": c.statement, "expected": c.expected} for c in one.claims],
        "known": [{"preset": run.preset, "seeds": run.seeds, "verdicts": dict(run.verdicts)} for run in known(one)],
    }
