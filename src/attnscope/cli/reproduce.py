"""`attnscope reproduce`: a paper's claims, run again, with a verdict beside each."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnscope.cli.options import Verbose, json_option, out_option, resume_option
from attnscope.core.errors import RefusalError, nearest
from attnscope.core.experiment import PRESETS
from attnscope.core.words import clean

if TYPE_CHECKING:
    from attnscope.core.experiment import ExperimentCard


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
    out: Annotated[Path | None, out_option("results.json, page.html and charts", "PAPER")] = None,
    resume: Annotated[bool, resume_option("an interrupted run")] = False,
    verbose: Verbose = False,
    as_json: Annotated[bool, json_option("the results")] = False,
) -> None:
    """Run a paper's claims again, with a verdict beside each (any verdict is exit code 0); without PAPER, list them."""
    from attnscope.cli.files import named_folder
    from attnscope.cli.output import output_folder, print_json
    from attnscope.cli.progress import showing
    from attnscope.papers.cards import card_named, cards

    known = cards()
    if paper is None:
        _list(known.values(), as_json, verbose)
        return
    name = card_named(paper, known).name  # an unknown name is refused before anything is loaded
    if preset not in PRESETS:
        raise RefusalError(f"There is no preset called '{preset}'.{nearest(preset, PRESETS)}")
    usual = named_folder(name if preset == "quick" else f"{name}-{preset}")
    with showing() as progress:
        progress("loading", 0, 0)
        from attnscope.papers.checkpoints import FOLDER as CHECKPOINT
        from attnscope.papers.run import reproduce as run

        with output_folder(usual if out is None else out) as folder:
            if not resume and (folder / CHECKPOINT / "plan.json").exists():
                where = clean(str(folder))
                typer.echo(
                    f"attnscope: the interrupted run in {where} is replaced; --resume would go on with it.", err=True
                )
            try:
                done = run(name, preset, seeds=seeds, out=folder, resume=resume, progress=progress)
            except KeyboardInterrupt:
                where = clean(str(folder))
                typer.echo(f"attnscope: interrupted; what is done is kept in {where}: go on with --resume.", err=True)
                raise typer.Exit(130) from None
    if as_json:
        print_json(done.to_json())
    else:
        from attnscope.commands.reproduce.record import CHARTS, PAGE, RESULTS
        from attnscope.reports.terminal import print_record

        files = {"Page": folder / PAGE, "Record": folder / RESULTS, "Charts": folder / CHARTS}
        print_record(done, files=files, verbose=verbose)


def _list(papers: Iterable[ExperimentCard], as_json: bool, verbose: bool) -> None:
    if as_json:
        from attnscope.cli.output import print_json

        print_json([_described(one) for one in papers])
        return
    from rich.console import Console

    from attnscope.papers.known import listed
    from attnscope.reports.catalog import show_claims, show_papers
    from attnscope.reports.terminal import print_screen

    show = show_claims if verbose else show_papers
    print_screen(show(map(listed, papers)), {}, Console(highlight=False))


def _described(one: ExperimentCard) -> dict[str, Any]:
    from attnscope.papers.known import known

    return {
        "name": one.name,
        "title": one.title,
        "paper": one.paper,
        "summary": one.summary,
        "advice": one.advice,
        "takes": dict(one.takes),
        "seeds": dict(one.seeds),
        "claims": [{"name": c.name, "statement": c.statement, "expected": c.expected} for c in one.claims],
        "known": [{"preset": run.preset, "seeds": run.seeds, "verdicts": dict(run.verdicts)} for run in known(one)],
    }
