"""`attnscope compare`: models or surveys side by side, the first as the baseline. Surveys need no torch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from attnscope.cli.options import (
    SAVE,
    KeepText,
    Threshold,
    json_option,
    max_tokens_option,
    samples_option,
    seed_option,
    with_requests,
)
from attnscope.cli.runner import Output, running, tell_only
from attnscope.core.errors import RefusalError
from attnscope.core.finding import Severity
from attnscope.core.progress import Listener, silent
from attnscope.hf.loading.options import Loading, Sampling, SeededCorpusOptions

if TYPE_CHECKING:
    from attnscope.commands.compare.record import Comparison


@with_requests(
    SeededCorpusOptions,
    samples=samples_option(when="Models"),
    max_tokens=max_tokens_option("256, or the model's maximum length if that is shorter", when="Models"),
    seed=seed_option("random weights and for drawing sequences"),
    out=typer.Option(help="Also write an HTML page of the comparison.", metavar="FILE"),
    save=SAVE,
    as_json=json_option("the differences"),
)
def compare(
    sources: Annotated[
        list[str],
        typer.Argument(
            help="Two or more models or surveys; the first is the baseline. With --to atlas, one. Models: 'pocket', "
            "a folder, a hub name, a .gguf file. Surveys: survey.json files, or the folders that scans wrote.",
            metavar="SOURCE",
        ),
    ],
    corpus: Annotated[
        str | None,
        typer.Option(
            help="What models read: a text file, a folder, or - for standard input. Default: the text of a survey "
            "among the sources, or a text in the package.",
            metavar="FILE",
        ),
    ] = None,
    measures: Annotated[
        str, typer.Option(help="Models: sets (default, deep, all) and names, separated by commas.", metavar="LIST")
    ] = "default",
    sampling: Sampling = Sampling(samples=64),
    loading: Loading = Loading(),
    keep_text: KeepText = True,
    threshold: Threshold = None,
    to: Annotated[
        Literal["atlas"] | None,
        typer.Option(
            help="Place one model or survey among the real models of the atlas instead. --max-tokens is then 128."
        ),
    ] = None,
    fail_on: Annotated[
        Severity | None,
        typer.Option(
            help="Exit with code 1 if the loss or a finding of at least this severity is worse, or new (for CI)."
        ),
    ] = None,
    output: Output = Output(),
) -> None:
    """Compare models or surveys: say whether the loss is worse than that of the first, and where the models part."""
    from attnscope.cli.options import check_corpus, check_measures, check_model
    from attnscope.commands.compare.run import compare as twin
    from attnscope.commands.compare.run import is_survey
    from attnscope.commands.scan.diagnose import Thresholds

    if to is not None:
        if threshold or fail_on or measures != "default":
            raise RefusalError("--to atlas judges nothing: leave out --threshold, --fail-on and --measures.")
        _place(sources, corpus, loading, sampling, output)
        return
    if len(sources) < 2:
        raise RefusalError("A comparison needs at least two models or surveys: name another one.")
    thresholds = Thresholds.parse(threshold or [])
    models = [source for source in sources if not is_survey(source)]
    check_measures(measures)
    check_corpus(corpus, drawn=True)
    for model in models:
        check_model(model, loading)

    def compared(progress: Listener = silent) -> Comparison:
        return twin(
            *sources,
            corpus=corpus,
            measures=measures,
            thresholds=thresholds,
            loading=loading,
            sampling=sampling,
            keep_text=keep_text,
            progress=progress,
        )

    if models:
        with running(output, doing="the comparison", counted="sequences") as run:
            comparison = compared(run.progress)
    else:
        comparison = compared()
    tell_only(comparison, output)
    if fail_on and comparison.worse(fail_on):
        raise typer.Exit(1)


def _place(sources: list[str], corpus: str | None, loading: Loading, sampling: Sampling, output: Output) -> None:
    """Place one model or survey among the real models of the atlas."""
    from attnscope.cli.options import check_corpus, check_model
    from attnscope.commands.compare.run import is_survey
    from attnscope.commands.place.run import USUAL, place

    if len(sources) != 1:
        raise RefusalError("--to atlas places one model or survey at a time: name a single one.")
    check_corpus(corpus, drawn=True)
    if not is_survey(sources[0]):
        check_model(sources[0], loading)
    with running(output, doing="the placement", counted="sequences") as run:
        placement = place(
            sources[0],
            corpus,
            loading=loading,
            sampling=replace(sampling, max_tokens=sampling.max_tokens or USUAL.max_tokens),
            progress=run.progress,
        )
    tell_only(placement, output)
