"""`attnscope view`: the attention of one text, every head, as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnscope.cli.options import Model, chart_option, json_option, out_option, seed_option, with_requests
from attnscope.cli.runner import Output, running
from attnscope.core.errors import RefusalError
from attnscope.hf.loading.options import Loading, Sampling, TextOptions


@with_requests(
    TextOptions,
    seed=seed_option("random weights"),
    out=out_option("view.json and view.html", "MODEL"),
    chart=chart_option("the head at which the page opens"),
    as_json=json_option("what every head does (not the maps)"),
)
def view(
    model: Model,
    text: Annotated[
        str | None,
        typer.Argument(
            help="What the model reads: a text, a file of one, - for standard input, a picture (photo.png) or a sound "
            "(speech.wav); or see --from."
        ),
    ] = None,
    beside: Annotated[
        str | None,
        typer.Argument(
            help="A second input: the text beside a picture, what is said in a sound, or the target of an "
            "encoder-decoder, which writes it itself where it is left out."
        ),
    ] = None,
    block: Annotated[
        str | None,
        typer.Option(help="Where the page opens; several (0-3,7) are all that is written.", metavar="BLOCKS"),
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(help="Where the page opens; several (0-3,7) are all that is written.", metavar="HEADS"),
    ] = None,
    survey: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Instead of a text, a sequence that a finding of this survey points at, token for token.",
            metavar="SURVEY",
        ),
    ] = None,
    sample: Annotated[
        int | None, typer.Option(help="Which sequence of --from; the report names it.", metavar="N", min=0)
    ] = None,
    max_mb: Annotated[float, typer.Option(help="Refuse a page above so many megabytes.", min=0, metavar="MB")] = 64.0,
    loading: Loading = Loading(),
    sampling: Sampling = Sampling(),
    output: Output = Output(),
) -> None:
    """Which head of MODEL looks where in TEXT? Every map on one page, as lines or grids, in 8 bits a weight."""
    from attnscope.cli.files import model_folder, text_or_medium
    from attnscope.cli.options import check_model

    read = tuple(text_or_medium(side) for side in (text, beside) if side is not None)
    _check_survey(text, survey, sample)
    check_model(model, loading)
    with running(output, output.out or model_folder(model, loading.random_init), "the view") as run:
        from attnscope.commands.view.run import view as twin

        found = twin(
            model,
            (read[0], read[1]) if len(read) > 1 else next(iter(read), None),
            block=block,
            head=head,
            survey=survey,
            sample=sample,
            max_mb=max_mb,
            loading=loading,
            sampling=sampling,
            progress=run.progress,
        )
        run.keep(found, "view.json", "view.html")
    run.tell(found)


def _check_survey(text: str | None, survey: Path | None, sample: int | None) -> None:
    """Refuse what cannot be viewed before torch is imported."""
    if survey is None:
        if text is None or sample is not None:
            raise RefusalError("Give a TEXT to view, or --from SURVEY --sample N for a sequence that a survey keeps.")
        return
    if text is not None:
        raise RefusalError("A TEXT and --from are two things to view: give one of them.")
    from attnscope.commands.scan.survey.survey import Survey

    Survey.load(survey)
