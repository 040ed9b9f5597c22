"""`attnscope collapse`: what is left of the differences between tokens, layer after layer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnscope.cli.options import (
    AllowPickle,
    BatchSize,
    Bos,
    Corpus,
    Device,
    Field,
    LoadedDtype,
    ModelOrShape,
    RandomInit,
    TrustRemoteCode,
    Verbose,
    chart_option,
    json_option,
    max_tokens_option,
    out_option,
    samples_option,
    seeds_option,
    stack_option,
)


def collapse(
    model: ModelOrShape,
    corpus: Corpus = None,
    random_init: RandomInit = False,
    seeds: Annotated[int, seeds_option("Models to draw with --random-init")] = 1,
    variants: Annotated[
        str, typer.Option(help="From san, san+mlp, san+skip and whole, separated by commas.", metavar="LIST")
    ] = "san,san+mlp,san+skip,whole",
    norm: Annotated[str, typer.Option(help="How residuals are measured: 1,inf (the paper's), frobenius, 1 or inf.")] = (
        "1,inf"
    ),
    samples: Annotated[int, samples_option()] = 8,
    max_tokens: Annotated[int | None, max_tokens_option("128, or all that the model has positions for")] = None,
    batch_size: BatchSize = 8,
    dtype: LoadedDtype = "float64",
    device: Device = "cpu",
    stack: Annotated[str | None, stack_option("the first")] = None,
    no_mlp_skip: Annotated[
        bool, typer.Option("--no-mlp-skip", help="Where skips are cut, cut those past MLPs as well.")
    ] = False,
    no_bounds: Annotated[bool, typer.Option("--no-bounds", help="Leave the bounds out.")] = False,
    published: Annotated[
        str | None,
        typer.Option(help="Draw the paper's curves of BERT, Albert or XLNet beside these.", metavar="NAME"),
    ] = None,
    out: Annotated[Path | None, out_option("collapse.json and collapse.html", "MODEL")] = None,
    chart: Annotated[Path | None, chart_option("the curves")] = None,
    field: Field = "text",
    bos: Bos = "auto",
    allow_pickle: AllowPickle = False,
    trust_remote_code: TrustRemoteCode = False,
    verbose: Verbose = False,
    as_json: Annotated[bool, json_option("everything")] = False,
) -> None:
    """Does depth destroy MODEL? What is left of the differences between tokens, with and without skips and MLPs."""
    from attnscope.cli.files import checked_file, model_folder
    from attnscope.cli.options import check_corpus, check_model, check_variants
    from attnscope.cli.output import output_folder
    from attnscope.cli.progress import showing

    if chart is not None:
        checked_file(chart, "--chart", (".html", ".json", ".png", ".svg"))
    if published is not None:
        _check_published(published, norm)
    check_variants(variants)
    check_corpus(corpus)
    check_model(
        model,
        dtype=dtype,
        random_init=random_init,
        allow_pickle=allow_pickle,
        trust_remote_code=trust_remote_code,
        shapes=True,
    )
    place = model_folder(model, random_init) if out is None else out
    saved: Path | None = None
    try:
        with output_folder(place) as folder, showing() as progress:
            progress("loading", 0, 0)
            from attnscope.commands.collapse.run import collapse as run_collapse

            found = run_collapse(
                model,
                corpus,
                variants=variants,
                samples=samples,
                max_tokens=max_tokens,
                batch_size=batch_size,
                norm=norm,
                random_init=random_init,
                seeds=seeds,
                dtype=dtype,
                device=device,
                mlp_skip=not no_mlp_skip,
                bounds=not no_bounds,
                stack=stack,
                field=field,
                bos=bos,
                allow_pickle=allow_pickle,
                trust_remote_code=trust_remote_code,
                progress=progress,
            )
            saved = found.save(folder / "collapse.json")
            progress("drawing the page", 0, 0)
            page = found.write_page(folder / "collapse.html", published=published)
    except KeyboardInterrupt:
        from attnscope.core.words import clean

        done = "nothing was written" if saved is None else f"{clean(str(saved))} is written, the page is not"
        typer.echo(f"attnscope: interrupted; {done}. Fewer --samples or --variants take less time.", err=True)
        raise typer.Exit(130) from None
    if chart is not None:
        from attnscope.reports.export import save

        save(found.chart(published=published, bounds=not no_bounds), chart)
    if as_json:
        from attnscope.cli.output import print_json

        files = {"data": str(saved), "page": str(page), "chart": None if chart is None else str(chart)}
        print_json({**found.to_json(), "files": files})
    else:
        from attnscope.reports.terminal import print_record

        print_record(found, files={"Page": page, "Record": saved, "Chart": chart}, published=published, verbose=verbose)


def _check_published(name: str, norm: str) -> None:
    """An unknown name, or curves that cannot be compared, are refused before any work is done."""
    from attnscope.commands.collapse.record import published
    from attnscope.core.errors import RefusalError

    if norm != "1,inf":
        raise RefusalError("The published curves are in the paper's norm: leave --norm out, or --published.")
    published(name)
