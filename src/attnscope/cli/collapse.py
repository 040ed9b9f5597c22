"""`attnscope collapse`: what is left of the differences between tokens, block after block."""

from __future__ import annotations

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
from attnscope.core.errors import RefusalError, one_of
from attnscope.hf.loading.options import CorpusOptions, Loading, Sampling


@with_requests(
    CorpusOptions,
    max_tokens=max_tokens_option("128, or all that the model has positions for"),
    out=out_option("collapse.json and collapse.html", "MODEL"),
    chart=chart_option("the curves"),
    as_json=json_option("everything"),
)
def collapse(
    model: ModelOrShape,
    corpus: Corpus = None,
    seeds: Annotated[int, seeds_option("Models to draw with --random-init")] = 1,
    variants: Annotated[
        str, typer.Option(help="From san, san+mlp, san+skip and whole, separated by commas.", metavar="LIST")
    ] = "san,san+mlp,san+skip,whole",
    norm: Annotated[str, typer.Option(help="How residuals are measured: 1,inf (the paper's), frobenius, 1 or inf.")] = (
        "1,inf"
    ),
    sampling: Sampling = Sampling(samples=8),
    loading: Loading = Loading(dtype="float64"),
    stack: Annotated[str | None, stack_option("the first")] = None,
    no_mlp_skip: Annotated[
        bool, typer.Option("--no-mlp-skip", help="Where skips are cut, cut those past MLPs as well.")
    ] = False,
    no_bounds: Annotated[bool, typer.Option("--no-bounds", help="Leave the bounds out.")] = False,
    published: Annotated[
        str | None,
        typer.Option(help="Draw the paper's curves of BERT, Albert or XLNet beside these.", metavar="NAME"),
    ] = None,
    output: Output = Output(),
) -> None:
    """Does depth destroy MODEL? What is left of the differences between tokens, with and without skips and MLPs."""
    from attnscope.cli.files import model_folder
    from attnscope.cli.options import check_corpus, check_model, listed
    from attnscope.commands.collapse.record import VARIANTS
    from attnscope.commands.collapse.record import published as published_curves

    if published is not None:
        if norm != "1,inf":
            raise RefusalError("The published curves are in the paper's norm: leave --norm out, or --published.")
        published_curves(published)
    for name in listed(variants):
        one_of(name, VARIANTS, "variants")
    check_corpus(corpus)
    check_model(model, loading, shapes=True)
    with running(output, output.out or model_folder(model, loading.random_init), "the measurement") as run:
        from attnscope.commands.collapse.run import collapse as twin

        found = twin(
            model,
            corpus,
            variants=variants,
            norm=norm,
            seeds=seeds,
            mlp_skip=not no_mlp_skip,
            bounds=not no_bounds,
            stack=stack,
            loading=loading,
            sampling=sampling,
            progress=run.progress,
        )
        run.keep(found, "collapse.json", "collapse.html", published=published)
    run.tell(found, chart={"published": published, "bounds": not no_bounds}, published=published)
