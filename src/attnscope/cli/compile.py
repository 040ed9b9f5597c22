"""`attnscope compile`: the narrowest head for a sparse pattern, with a certificate."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnscope.cli.options import (
    HeadDtype,
    Leak,
    RatioError,
    Verbose,
    budget_option,
    chart_option,
    json_option,
    seed_option,
)
from attnscope.core.card import names
from attnscope.core.errors import RefusalError
from attnscope.core.files import named_path
from attnscope.core.progress import uninterrupted
from attnscope.core.words import clean

if TYPE_CHECKING:
    from attnscope.commands.compile.record import Compiled
    from attnscope.core.progress import Advance
    from attnscope.heads.pattern import Pattern

CONSTRUCTIONS = names("attnscope.constructions")
PAGE = "head.html"


def compile(
    pattern: Annotated[
        str | None,
        typer.Argument(
            help="A file (.npz, .npy, .mtx, .json; .txt and .csv with an edge on a line: row, column, weight) or a "
            "generator: permutation, union_of_permutations, window, strided, sink_window, block, random_graph, "
            "induction, previous_token.",
            show_default=False,
        ),
    ] = None,
    n: Annotated[int | None, typer.Option("-n", help="Rows of a generated pattern.", min=1)] = None,
    k: Annotated[
        int | None, typer.Option("-k", help="Non-zeros in a row of a generated or observed pattern.", min=1)
    ] = None,
    ratio_error: RatioError = 0.1,
    leak: Leak = 0.01,
    dtype: HeadDtype = "float32",
    method: Annotated[
        str,
        typer.Option(help=f"auto, {', '.join(CONSTRUCTIONS[:-1])} or {CONSTRUCTIONS[-1]}."),
    ] = "auto",
    width: Annotated[
        int | None, typer.Option(help="Build the best head of this width instead of searching.", min=1)
    ] = None,
    causal: Annotated[
        bool, typer.Option("--causal", help="Queries see no later key: what lies above the diagonal is masked.")
    ] = False,
    universal: Annotated[
        bool,
        typer.Option(
            "--universal",
            help="Keys that do not depend on the pattern; says whether they are proved to serve all.",
        ),
    ] = False,
    normalise: Annotated[bool, typer.Option("--normalise", help="Divide every row by its sum first.")] = False,
    model: Annotated[
        str | None, typer.Option(help="Take the pattern from a head of this model, as it reads --text.")
    ] = None,
    text: Annotated[str | None, typer.Option(help="What the model reads: a text, or a file of one.")] = None,
    layer: Annotated[int, typer.Option(help="Layer of the observed head.", min=0)] = 0,
    head: Annotated[int, typer.Option(help="The observed head.", min=0)] = 0,
    seed: Annotated[int, seed_option("generated patterns and for the search", 0)] = 0,
    budget: Annotated[float, budget_option("the search, about; one that has not found a head yet goes on.")] = 300.0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for head.safetensors and head.html, or a .safetensors file for the head alone. Default: "
            "attnscope-PATTERN.",
            metavar="PLACE",
        ),
    ] = None,
    chart: Annotated[Path | None, chart_option("target, realised pattern and error")] = None,
    verbose: Verbose = False,
    as_json: Annotated[bool, json_option("the certificate")] = False,
) -> None:
    """Build the narrowest attention head that does what PATTERN says, with a certificate that proves it does."""
    from attnscope.cli.files import checked_file, pattern_folder
    from attnscope.cli.options import check_construction, check_model
    from attnscope.cli.output import output_folder
    from attnscope.cli.progress import showing
    from attnscope.heads.accuracy import checked_accuracy

    alone = out is not None and out.suffix.lower() == ".safetensors"
    if out is not None and (alone or (out.suffix and not out.is_dir())):
        checked_file(out, "--out", (".safetensors",))
    if chart is not None:
        checked_file(chart, "--chart", (".html", ".json", ".png", ".svg"))
    _check_source(pattern, n, model, text, causal or normalise)
    check_construction(method)
    checked_accuracy(ratio_error, leak, dtype)
    if model:
        check_model(model)
    with ExitStack() as open_places:
        progress = open_places.enter_context(showing())
        try:
            progress("loading", 0, 0)  # torch takes seconds to import: say so first
            target = (
                _observed(model, text or "", layer, head, k or 4, progress)
                if model
                else _pattern(str(pattern), n, k, seed, causal, normalise)
            )
            place = out or pattern_folder(_folder_name(pattern, n, k, model, layer, head), target)
            folder = None if alone else open_places.enter_context(output_folder(place))
            from attnscope.commands.compile.run import compile as run

            compiled = run(
                target,
                ratio_error=ratio_error,
                leak=leak,
                dtype=dtype,
                method=method,
                width=width,
                universal=universal,
                seed=seed,
                budget=budget,
                progress=progress,
            )
        except KeyboardInterrupt:
            typer.echo("attnscope: interrupted before any head was built; nothing is written.", err=True)
            raise typer.Exit(130) from None
        written, page = _kept(compiled, place, folder, progress)
    _finish(compiled, {"Page": page, "Head": written, "Chart": chart}, as_json, verbose)


def _kept(compiled: Compiled, place: Path, folder: Path | None, progress: Advance) -> tuple[Path, Path | None]:
    """The head, and in a folder its page too; who has pressed Ctrl-C does not wait for a drawing."""
    from attnscope.cli.files import HEAD

    with uninterrupted():  # a second Ctrl-C must not take away what the first one was promised
        written = compiled.save(place if folder is None else folder / HEAD)
    if folder is None or compiled.interrupted:
        return written, None
    try:
        progress("drawing the page", 0, 0)
        return written, compiled.write_page(folder / PAGE)
    except KeyboardInterrupt:
        where = clean(str(written))
        typer.echo(f"attnscope: interrupted; the head is in {where}, its page is not written.", err=True)
        raise typer.Exit(130) from None


def _folder_name(pattern: str | None, n: int | None, k: int | None, model: str | None, layer: int, head: int) -> str:
    """`window-n64-k4`, the name of a file, or `pocket-layer1-head0`."""
    if model is not None:
        return f"{Path(model).name}-layer{layer}-head{head}"
    return str(pattern) + f"-n{n}-k{k or 1}" if n is not None else Path(str(pattern)).stem


def _check_source(pattern: str | None, n: int | None, model: str | None, text: str | None, changed: bool) -> None:
    if model == "":
        raise RefusalError("The name after --model is empty: name a folder, a hub name, a .gguf file, or 'pocket'.")
    if model is not None:
        if pattern is not None:
            raise RefusalError("Both a pattern and --model are given: the pattern comes from one of them.")
        if text is None:
            raise RefusalError("--model needs something to read: give it with --text.")
        if n is not None:
            raise RefusalError("-n is for generated patterns: with --model, the text says how many rows there are.")
        if changed:
            raise RefusalError(
                "--causal and --normalise say how to read a pattern: leave them out, the model's head decides both."
            )
        return
    if text is not None:
        raise RefusalError("--text is what a model reads: name the model with --model.")
    if not pattern:
        raise RefusalError("No pattern is given: name a file or a generator, or a model with --model and --text.")


def _pattern(source: str, n: int | None, k: int | None, seed: int, causal: bool, normalise: bool) -> Pattern:
    """A generator where there is one of that name, for no file can be read that has no suffix; else a file."""
    from attnscope.heads.generate import GENERATORS, generate

    path = named_path(source, "pattern")
    if source not in GENERATORS and (path.exists() or path.suffix or os.sep in source):
        from attnscope.heads.read_pattern import read_pattern

        if n is not None or k is not None:
            raise RefusalError(f"-n and -k are for generated patterns: the size of {source} is in the file.")
        return read_pattern(path, causal=causal, normalise=normalise)
    if source in GENERATORS and n is None:
        raise RefusalError(f"A generated pattern needs a size: give {source} one with -n, like -n 256.")
    return generate(source, n or 1, 1 if k is None else k, seed=seed, causal=causal)


def _observed(model: str, text: str, layer: int, head: int, k: int, progress: Advance) -> Pattern:
    from attnscope.cli.files import text_or_file
    from attnscope.hf.loading.load import load
    from attnscope.hf.tapping.observed import observed_pattern

    progress(f"reading the text with {model}", 0, 0)
    return observed_pattern(load(model), text_or_file(text), layer=layer, head=head, k=k)


def _finish(compiled: Compiled, files: dict[str, Path | None], as_json: bool, verbose: bool) -> None:
    """Draw, say, and tell by the exit code: 130 after Ctrl-C, 1 if the accuracy was not reached."""
    from attnscope.cli.output import print_json

    if (chart := files["Chart"]) is not None:
        from attnscope.reports.export import save

        save(compiled.chart(), chart)
    if as_json:
        places = {label.lower(): None if path is None else str(path) for label, path in files.items()}
        print_json(compiled.to_json() | places)
    else:
        from attnscope.reports.terminal import print_record

        print_record(compiled, files=files, verbose=verbose)
    where = clean(str(files["Head"]))
    if compiled.interrupted:
        typer.echo(f"attnscope: interrupted; the best head so far is in {where}.", err=True)
        raise typer.Exit(130)
    if compiled.out_of_time:
        typer.echo("attnscope: the time was up before the search was: --budget gives it more.", err=True)
    if not compiled.reached:
        typer.echo(
            f"attnscope: the accuracy was not reached; the best head, marked as failing, is in {where}.", err=True
        )
        raise typer.Exit(1)
