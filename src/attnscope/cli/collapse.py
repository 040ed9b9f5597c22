"""`attnscope collapse`: what is left of the differences between tokens, layer after layer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnscope.cli.options import AllowPickle, Device, RandomInit, TrustRemoteCode

if TYPE_CHECKING:
    from attnscope.depth.published import Published

SAMPLES = 32
FEW_SAMPLES = 8  # of models of a published size, which take seconds a sequence in float64


def collapse(
    model: Annotated[
        str,
        typer.Argument(
            help="'pocket' (embedded), a model folder, a hub name, a .gguf file; with --random-init a config, or a "
            "shape of the paper: bert-base, albert-base, xlnet-base."
        ),
    ],
    corpus: Annotated[
        str | None,
        typer.Argument(
            help="Text: a .txt, .jsonl, .gz or .parquet file, a folder, or - for standard input. "
            "Default: a public-domain text inside the package; random tokens without a tokenizer."
        ),
    ] = None,
    random_init: RandomInit = False,
    seeds: Annotated[int, typer.Option(help="Models to draw with --random-init: seeds 0, 1, ...", min=1)] = 1,
    variants: Annotated[
        str, typer.Option(help="From san, san+mlp, san+skip and whole, separated by commas.", metavar="LIST")
    ] = "san,san+mlp,san+skip,whole",
    norm: Annotated[str, typer.Option(help="How residuals are measured: 1,inf (the paper's), frobenius, 1 or inf.")] = (
        "1,inf"
    ),
    samples: Annotated[
        int | None,
        typer.Option(help=f"Sequences, at most. Default: {SAMPLES}, or {FEW_SAMPLES} for a shape of the paper.", min=1),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            help="Tokens in a sequence, at most. Default: 128, or all that the model has positions for.", min=2
        ),
    ] = None,
    batch_size: Annotated[
        int, typer.Option(help="Sequences in a batch; halves itself when memory runs out.", min=1)
    ] = 8,
    dtype: Annotated[str, typer.Option(help="float64, float32, bfloat16, float16, or auto.")] = "float64",
    device: Device = "cpu",
    stack: Annotated[
        str | None, typer.Option(help="Which stack of a model with several. Default: the first.", metavar="NAME")
    ] = None,
    no_mlp_skip: Annotated[
        bool, typer.Option("--no-mlp-skip", help="Where skips are cut, cut those past MLPs as well.")
    ] = False,
    no_bounds: Annotated[bool, typer.Option("--no-bounds", help="Leave the bounds out.")] = False,
    published: Annotated[
        str | None,
        typer.Option(help="Draw the paper's curves of BERT, Albert or XLNet beside these.", metavar="NAME"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for collapse.json and collapse.html; without one neither is written.", metavar="FOLDER"
        ),
    ] = None,
    chart: Annotated[
        Path | None, typer.Option(help="Draw the curves: .png, .svg, .html or .json.", metavar="FILE")
    ] = None,
    field: Annotated[str, typer.Option(help="The text field of .jsonl and .parquet corpora.")] = "text",
    allow_pickle: AllowPickle = False,
    trust_remote_code: TrustRemoteCode = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print everything as JSON on standard output, and nothing else.")
    ] = False,
) -> None:
    """Residual against depth: attention only, with MLPs, with skips, and whole; bounds beside the truth."""
    from contextlib import nullcontext

    from attnscope.cli.files import checked_file
    from attnscope.cli.output import output_folder
    from attnscope.cli.steps import stepping

    if chart is not None:
        checked_file(chart, "--chart", (".html", ".json", ".png", ".svg"))
    if published is not None and norm != "1,inf":
        from attnscope.core.errors import RefusalError

        raise RefusalError("The published curves are in the paper's norm: leave --norm out, or --published.")
    reference = _reference(published, random_init)
    saved: Path | None = None
    try:
        with nullcontext(None) if out is None else output_folder(out) as folder, stepping() as progress:
            progress("loading", 0, 0)
            from attnscope.depth.collapse import collapse as run_collapse
            from attnscope.hf.shapes import SHAPES

            few = random_init and model in SHAPES
            found = run_collapse(
                model,
                corpus,
                variants=variants,
                samples=samples or (FEW_SAMPLES if few else SAMPLES),
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
                allow_pickle=allow_pickle,
                trust_remote_code=trust_remote_code,
                progress=progress,
            )
            data = found.to_json()
            if folder is not None:
                from attnscope.pages.collapse_page import write_collapse

                saved = found.save(folder / "collapse.json")
                write_collapse(data, folder / "collapse.html", published=reference)
    except KeyboardInterrupt:
        from attnscope.core.visible import clean

        done = "nothing was written" if saved is None else f"{clean(str(saved))} is written, the page is not"
        typer.echo(f"attnscope: interrupted; {done}: ask for fewer --samples or --variants.", err=True)
        raise typer.Exit(130) from None
    if chart is not None:
        from attnscope.charts.collapse_curves import collapse_chart
        from attnscope.charts.export import save

        save(collapse_chart(data, published=reference, bounds=not no_bounds), chart)
    if as_json:
        from attnscope.cli.output import print_json

        print_json(data)
    else:
        print_collapse(data, reference, page=None if out is None else out / "collapse.html", chart=chart)


def _reference(name: str | None, random_init: bool) -> Published | None:
    """The published curves that were asked for; an unknown name is refused before any work is done."""
    if name is None:
        return None
    from attnscope.depth.published import published

    return published(name, "random" if random_init else "trained")


def print_collapse(
    data: Mapping[str, Any], reference: Published | None, *, page: Path | None = None, chart: Path | None = None
) -> None:
    """What `Collapse.to_json` says: sentences, the curves as numbers, bounds beside the truth."""
    from rich.console import Console
    from rich.text import Text

    from attnscope.core.visible import clean
    from attnscope.pages.collapse_words import bound_lines, end_lines, published_words, sentences

    console = Console(highlight=False)
    shape = (
        f"{data['layers']} layers of {data['heads']} heads, norm {data['norm_placement']}, {data['weights']} weights"
    )
    console.print(Text.assemble("\n", (clean(data["model"]), "bold"), ("  " + clean(shape), "dim")))
    corpus = data["provenance"]["corpus"]
    read = f"{clean(str(corpus['name']))}, {corpus['sequences']} sequences of up to {data['tokens']} tokens"
    console.print(Text(f"{read}, {clean(str(data['norm']))} norm\n", style="dim"))
    for sentence in sentences(data):
        console.print(Text(clean(sentence)))
    for note in data["notes"]:
        console.print(Text(clean(note), style="dim"))
    _print_curves(console, data)
    heading, *lines = bound_lines(data) or [()]
    _print_table(console, "One layer of attention alone", heading, lines)
    _print_table(console, "From the first layer to the last", ("bound", "of", "truth", "bound", ""), end_lines(data))
    if reference is not None:
        console.print(Text("\nBeside the published curves", style="bold"))
        for sentence in published_words(data, reference.curves, reference.model):
            console.print(Text(clean(sentence)))
    for label, path in (("Page   ", page), ("Chart  ", chart)):
        if path is not None:
            console.print(Text.assemble("\n", (label, "dim"), clean(str(path))), soft_wrap=True)
    console.print()


def _print_curves(console: Any, data: Mapping[str, Any]) -> None:
    """At most nine depths, evenly spread and with the last, so that a line holds them."""
    from attnscope.charts.numerals import numeral

    depths = max(len(curve["mean"]) for curve in data["curves"].values())
    step = max(1, -(-(depths - 1) // 6))
    shown = sorted({*range(0, depths, step), depths - 1})
    lines = [
        (
            curve["title"],
            *("–" if curve["mean"][d] is None else numeral(float(f"{curve['mean'][d]:.2g}")) for d in shown),
        )
        for curve in data["curves"].values()
    ]
    _print_table(console, "Relative residual", ("depth", *map(str, shown)), lines)


def _print_table(console: Any, title: str, heading: tuple[str, ...], lines: list[tuple[str, ...]]) -> None:
    from rich.table import Table
    from rich.text import Text

    from attnscope.core.visible import clean

    if not lines:
        return
    table = Table.grid(padding=(0, 2))
    for _ in heading:
        table.add_column()
    table.add_row(*(Text(word, style="dim") for word in heading))
    for line in lines:
        table.add_row(*(Text(clean(word)) for word in line))
    console.print(Text.assemble("\n", (title, "bold")))
    console.print(table)
