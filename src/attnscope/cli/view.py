"""`attnscope view`: the attention of every head on one text, as one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnscope.cli.options import Model, chart_option, json_option, out_option, seed_option, with_requests
from attnscope.cli.runner import Output, running
from attnscope.commands.view.settings import ViewSettings
from attnscope.core.errors import RefusalError
from attnscope.hf.loading.options import Loading, Sampling, TextOptions

if TYPE_CHECKING:
    from attnscope.commands.scan.survey.survey import Survey

OPENS = "{} at which the page opens. If several are given (0-3,7), only these are written."


@with_requests(
    TextOptions,
    block=Annotated[str | None, typer.Option(help=OPENS.format("Block"), metavar="BLOCKS")],
    head=Annotated[str | None, typer.Option(help=OPENS.format("Head"), metavar="HEADS")],
    max_mb=Annotated[float, typer.Option(help="Refuse a page larger than this, in megabytes.", min=0, metavar="MB")],
    seed=seed_option("random weights"),
    out=out_option("view-TEXT.json and view-TEXT.html", "MODEL"),
    chart=chart_option("the head at which the page opens"),
    as_json=json_option("what every head does (not the maps)"),
)
def view(
    model: Model,
    text: Annotated[
        str | None,
        typer.Argument(
            help="What the model reads: a text, a text file, - for standard input, a picture (photo.png) or a sound "
            "(speech.wav); or see --from."
        ),
    ] = None,
    beside: Annotated[
        str | None,
        typer.Argument(
            help="A second input: the text that goes with a picture, the transcript of a sound, or the target of an "
            "encoder-decoder. Default for the target: what the model generates.",
            metavar="SECOND_INPUT",
        ),
    ] = None,
    settings: ViewSettings = ViewSettings(),
    survey: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Instead of a text, view a sequence that a finding of this survey refers to.",
            metavar="SURVEY",
        ),
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option(help="With --from: the number of the sequence, which the report names.", metavar="N", min=0),
    ] = None,
    loading: Loading = Loading(),
    sampling: Sampling = Sampling(),
    output: Output = Output(),
) -> None:
    """Where does each head of MODEL attend in TEXT? Writes one page with all maps, 8 bits per weight."""
    from attnscope.cli.files import model_folder, text_or_medium
    from attnscope.cli.options import check_model

    read = tuple(text_or_medium(side) for side in (text, beside) if side is not None)
    kept = _survey_of(text, survey, sample)
    check_model(model, loading)
    with running(output, output.out or model_folder(model, loading.random_init), "the view") as run:
        from attnscope.commands.view.run import view as twin

        found = twin(
            model,
            (read[0], read[1]) if len(read) > 1 else next(iter(read), None),
            settings=settings,
            survey=kept,
            sample=sample,
            loading=loading,
            sampling=sampling,
            progress=run.progress,
        )
        run.keep(found, "view.json", "view.html", about=read or (f"sample {sample}",))
    run.tell(found)


def _survey_of(text: str | None, survey: Path | None, sample: int | None) -> Survey | None:
    """Read the survey, if there is one; refuse what cannot be viewed before torch is imported."""
    if survey is None:
        if text is None or sample is not None:
            raise RefusalError("Give a TEXT to view, or --from SURVEY --sample N for a sequence that a survey keeps.")
        return None
    if text is not None:
        raise RefusalError("Both a TEXT and --from are given: leave one of them out.")
    from attnscope.commands.scan.survey.survey import Survey

    return Survey.load(survey)
