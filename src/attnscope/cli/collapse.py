"""`attnscope collapse`: what is left of the differences between tokens, block after block."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from attnscope.cli.options import (
    Corpus,
    ModelOrShape,
    chart_option,
    json_option,
    max_tokens_option,
    out_option,
    seeds_option,
    stack_option,
    with_requests,
)
from attnscope.cli.runner import Output, running
from attnscope.commands.collapse.settings import CollapseSettings
from attnscope.core.errors import RefusalError, one_of
from attnscope.hf.loading.options import CorpusOptions, Loading, Sampling


@with_requests(
    CorpusOptions,
    seeds=Annotated[int, seeds_option("Models to draw with --random-init")],
    variants=Annotated[
        str, typer.Option(help="From san, san+mlp, san+skip and whole, separated by commas.", metavar="LIST")
    ],
    norm=Annotated[str, typer.Option(help="How residuals are measured: 1,inf (the paper's), frobenius, 1 or inf.")],
    stack=Annotated[str | None, stack_option("the first")],
    max_tokens=max_tokens_option("128, or the model's maximum length if that is shorter"),
    out=out_option("collapse.json and collapse.html", "MODEL"),
    chart=chart_option("the curves"),
    as_json=json_option("everything"),
)
def collapse(
    model: ModelOrShape,
    corpus: Corpus = None,
    settings: CollapseSettings = CollapseSettings(),
    sampling: Sampling = Sampling(samples=8),
    loading: Loading = Loading(dtype="float64"),
    no_mlp_skip: Annotated[
        bool, typer.Option("--no-mlp-skip", help="Where skip connections are removed, also remove those around MLPs.")
    ] = False,
    no_bounds: Annotated[bool, typer.Option("--no-bounds", help="Leave the bounds out.")] = False,
    published: Annotated[
        str | None,
        typer.Option(help="Also draw the paper's curves for BERT, Albert or XLNet.", metavar="NAME"),
    ] = None,
    output: Output = Output(),
) -> None:
    """Measure how much of the differences between tokens is left after each block of MODEL, with and without skips and
    MLPs."""
    from attnscope.cli.files import model_folder
    from attnscope.cli.options import check_corpus, check_model, listed
    from attnscope.commands.collapse.record import VARIANTS
    from attnscope.commands.collapse.record import published as published_curves

    if published is not None:
        if settings.norm != "1,inf":
            raise RefusalError("The published curves use the paper's norm: leave out --norm or --published.")
        published_curves(published)
    for name in listed(str(settings.variants)):
        one_of(name, VARIANTS, "variants")
    check_corpus(corpus)
    check_model(model, loading, shapes=True)
    with running(output, output.out or model_folder(model, loading.random_init), "the measurement") as run:
        from attnscope.commands.collapse.run import collapse as twin

        settings = replace(settings, mlp_skip=not no_mlp_skip, bounds=not no_bounds)
        found = twin(model, corpus, settings=settings, loading=loading, sampling=sampling, progress=run.progress)
        run.keep(found, "collapse.json", "collapse.html", published=published)
    run.tell(found, chart={"published": published, "bounds": not no_bounds}, published=published)
