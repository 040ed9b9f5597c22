"""`attnscope reproduce`: a paper's claims, run again, with a verdict beside each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnscope.core.visible import clean

if TYPE_CHECKING:
    from attnscope.core.experiment import Experiment
    from attnscope.reproducing.reproduce import Reproduction

COLOURS = {"reproduced": "green", "not reproduced": "yellow", "contradicted": "red", "not run": "dim"}


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
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for results, charts and the page; attnscope-PAPER where not given.", metavar="FOLDER"
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where an interrupted run ended.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON on standard output.")] = False,
) -> None:
    """Run a paper's claims again: reproduced, not reproduced, contradicted. Any verdict is a result: exit code 0."""
    from attnscope.cli.output import output_folder, print_json
    from attnscope.cli.steps import stepping

    if paper is None:
        _list(as_json)
        return
    with stepping() as progress:
        progress("loading", 0, 0)
        from attnscope.reproducing.reproduce import named
        from attnscope.reproducing.reproduce import reproduce as run

        name = named(paper).name  # a name that is none is refused before a folder is made for it
        with output_folder(Path(f"attnscope-{name}") if out is None else out) as folder:
            try:
                done = run(paper, preset, seeds=seeds, out=folder, resume=resume, progress=progress)
            except KeyboardInterrupt:
                where = clean(str(folder))
                typer.echo(f"attnscope: interrupted; what is done is kept in {where}: go on with --resume.", err=True)
                raise typer.Exit(130) from None
    if as_json:
        print_json(done.to_json())
    else:
        print_verdicts(done)


def _list(as_json: bool) -> None:
    from attnscope.cli.output import print_json
    from attnscope.reproducing.reproduce import reproduce as papers

    if as_json:
        print_json([_described(one) for one in papers()])
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from attnscope.reproducing.known import known

    console = Console(highlight=False)
    for one in papers():
        console.print(Text.assemble("\n", (one.name, "bold"), f"  {one.title}  ", (f"arXiv:{one.paper}", "dim")))
        console.print(Text(one.summary))
        console.print(Text(", ".join(f"{preset}: {time}" for preset, time in one.takes.items()), style="dim"))
        runs = known(one)
        for run in runs:
            console.print(Text(f"on record: {run.words}", style="dim"))
        table = Table.grid(padding=(0, 2))
        for claim in one.claims:
            verdict = runs[-1].verdicts.get(claim.name, "not run") if runs else "not run"
            table.add_row(Text(verdict, style=COLOURS[verdict]), Text(claim.statement))
        console.print(table)
    console.print(Text("\nRun one with: attnscope reproduce NAME\n", style="dim"))


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


def print_verdicts(done: Reproduction) -> None:
    """One row for each claim, then what was remarked, then where the files are."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from attnscope.reproducing.page import measured_words
    from attnscope.reproducing.reproduce import CHARTS, PAGE, RESULTS
    from attnscope.survey.words import count

    console = Console(highlight=False)
    about = (
        f"arXiv:{done.experiment.paper}, preset {done.preset}, {count(len(done.seeds), 'seed')}, {done.seconds:.0f} s"
    )
    console.print(Text.assemble("\n", (done.experiment.title, "bold"), ("  " + about, "dim")))
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("verdict", "claim", "expected", "measured"):
        table.add_column(heading, no_wrap=heading == "verdict")
    for claim in done.claims:
        table.add_row(
            Text(claim.verdict, style=COLOURS[claim.verdict]),
            Text(claim.statement),
            Text(claim.expected),
            Text("\n".join(measured_words(claim)) or "nothing"),
        )
    console.print(table)
    for remark in done.result.remarks:
        console.print(Text(f"· {remark}"))
    if done.folder is not None:
        for name in (RESULTS, PAGE, CHARTS):
            console.print(Text.assemble(("  ", ""), clean(str(done.folder / name))), soft_wrap=True)
    console.print()
