"""`attnscope reproduce`: run the experiments of a paper, and judge each of its claims."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnscope.cli.options import json_option, out_option, resume_option, with_requests
from attnscope.cli.output import print_json, say
from attnscope.cli.runner import Output, running
from attnscope.core.errors import one_of
from attnscope.core.experiment import PRESETS

if TYPE_CHECKING:
    from attnscope.core.experiment import ExperimentCard


@with_requests(out=out_option("results.json, page.html and charts", "PAPER"), as_json=json_option("the results"))
def reproduce(
    paper: Annotated[
        str | None,
        typer.Argument(help="A paper by name or arXiv number. Default: list all papers.", show_default=False),
    ] = None,
    preset: Annotated[str, typer.Option(help="quick (about a minute) or paper (the sizes of the paper).")] = "quick",
    seeds: Annotated[
        int | None,
        typer.Option(help="Number of seeds. Default: the number that the preset sets.", min=1, show_default=False),
    ] = None,
    resume: Annotated[bool, resume_option("an interrupted run")] = False,
    output: Output = Output(),
) -> None:
    """Run the experiments of PAPER and judge each claim (exit code 0 for any verdict); without PAPER, list all
    papers."""
    from attnscope.cli.files import named_folder
    from attnscope.papers.cards import card_named, cards

    known = cards()
    if paper is None:
        _list(known.values(), output)
        return
    name = card_named(paper, known).name  # refuse an unknown name before anything is loaded
    one_of(preset, PRESETS, "preset")
    folder = output.out or named_folder(name if preset == "quick" else f"{name}-{preset}")

    def kept() -> str:
        return f"interrupted; finished work is kept in {folder}: continue with --resume"

    with running(output, folder, kept=kept, lock="results.lock") as run:
        from attnscope.commands.reproduce.record import CHARTS, PAGE, RESULTS
        from attnscope.papers.checkpoints import FOLDER as CHECKPOINT
        from attnscope.papers.run import reproduce as twin

        if not resume and (folder / CHECKPOINT / "plan.json").exists():
            say(f"the interrupted run in {folder} will be replaced; --resume would continue it.")
        reproduction = twin(name, preset, seeds=seeds, out=folder, resume=resume, progress=run.progress)
        run.files = {"Page": folder / PAGE, "Record": folder / RESULTS, "Charts": folder / CHARTS}
    run.tell(reproduction, printed=lambda _: reproduction.to_json())


def _list(papers: Iterable[ExperimentCard], output: Output) -> None:
    if output.as_json:
        print_json([_described(paper) for paper in papers])
        return
    from rich.console import Console

    from attnscope.papers.known import listed
    from attnscope.reports.catalog import show_claims, show_papers
    from attnscope.reports.terminal import print_screen

    show = show_claims if output.verbose else show_papers
    print_screen(show(map(listed, papers)), {}, Console(highlight=False))


def _described(paper: ExperimentCard) -> dict[str, Any]:
    from attnscope.papers.known import known

    return {
        **{name: getattr(paper, name) for name in ("name", "title", "paper", "summary", "advice")},
        "takes": dict(paper.takes),
        "seeds": dict(paper.seeds),
        "claims": [{"name": c.name, "statement": c.statement, "expected": c.expected} for c in paper.claims],
        "known": [{"preset": run.preset, "seeds": run.seeds, "verdicts": dict(run.verdicts)} for run in known(paper)],
    }
