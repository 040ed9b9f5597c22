"""`attnscope capacity`: how wide must a head be?"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnscope.cli.options import (
    HeadDtype,
    Leak,
    RatioError,
    SaveRecord,
    Verbose,
    budget_option,
    chart_option,
    json_option,
    max_tokens_option,
    seeds_option,
)
from attnscope.core.errors import RefusalError
from attnscope.core.words import clean, count

if TYPE_CHECKING:
    from attnscope.commands.capacity.record import Capacity
    from attnscope.core.progress import Advance

# `attnscope capacity --model`: how wide must the heads of this model be?

HEAD_WIDTHS, HEAD_WIDTHS_PAGE = "head_widths.json", "head_widths.html"


def head_widths(
    model: str,
    corpus: str | None,
    asked: Mapping[str, Any],
    out: Path | None,
    save: Path | None,
    chart: Path | None,
    verbose: bool,
    as_json: bool,
) -> None:
    """Measure, keep the record and its page, say the answer."""
    from attnscope.cli.files import named_folder
    from attnscope.cli.options import check_model
    from attnscope.cli.output import output_folder, print_json
    from attnscope.cli.progress import showing

    check_model(model)
    with showing() as progress:
        progress("loading", 0, 0)
        from attnscope.commands.head_widths.run import BUDGET
        from attnscope.commands.head_widths.run import head_widths as measured

        place = named_folder(f"capacity-{Path(model).name}") if out is None else out
        budget = BUDGET if asked["budget"] is None else asked["budget"]
        with output_folder(place) as folder:
            answer = measured(model, corpus, **{**asked, "budget": budget}, progress=progress)
            record = answer.save(folder / HEAD_WIDTHS)
            files: dict[str, Path | None] = {
                "Page": answer.write_page(folder / HEAD_WIDTHS_PAGE),
                "Record": record,
                "Copy": save,
            }
    if save is not None:
        answer.save(save)
    if chart is not None:
        from attnscope.reports.export import save as save_chart

        save_chart(answer.chart(), chart)
    files["Chart"] = chart
    if as_json:
        places = {label.lower(): None if path is None else str(path) for label, path in files.items()}
        print_json(answer.to_json() | {"chart": places.pop("chart"), "files": places})
    else:
        from attnscope.reports.terminal import print_record

        print_record(answer, files=files, verbose=verbose)
    if answer.interrupted:
        typer.echo("attnscope: interrupted; the heads done until then are in the record.", err=True)
        raise typer.Exit(130)


RECORD, PAGE = "capacity.json", "capacity.html"


def capacity(
    n: Annotated[
        int | None, typer.Option("-n", help="Tokens in the context: rows and columns of the pattern.", min=2)
    ] = None,
    k: Annotated[
        int | None, typer.Option("-k", help="Keys that a query attends to. With --model: 4 if not given.", min=1)
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Instead of -n: what every head of this model attends to, and the width that it needs."),
    ] = None,
    corpus: Annotated[
        str | None, typer.Option(help="With --model: texts to read, a file or folder. Default: a small one inside.")
    ] = None,
    texts: Annotated[int, typer.Option(help="With --model: how many texts are read.", min=1)] = 2,
    max_tokens: Annotated[int, max_tokens_option("With --model; 48 if not given.")] = 48,
    dtype: HeadDtype = "float32",
    ratio_error: RatioError = 0.1,
    leak: Leak = 0.01,
    seeds: Annotated[int, seeds_option("Patterns to take the median over")] = 3,
    budget: Annotated[
        float | None,
        budget_option(
            "measuring what is not known yet, about. Default: 120, and none where the table inside the package has "
            "the answer."
        ),
    ] = None,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Measure again what was measured before, here or for the package.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for capacity.json and capacity.html. Default: attnscope-capacity-nN-kK, and nowhere for an "
            "answer that was only looked up.",
            metavar="FOLDER",
        ),
    ] = None,
    save: SaveRecord = None,
    chart: Annotated[Path | None, chart_option("width against n and against k")] = None,
    verbose: Verbose = False,
    as_json: Annotated[bool, json_option("the answer")] = False,
) -> None:
    """How wide must a head be to attend to any K of N tokens? What is proved, and what each construction needs.

    With --model: for every head of a model, the width of the narrowest head found for what it attends to on texts.
    """
    from attnscope.cli.files import checked_file, named_folder
    from attnscope.cli.output import output_folder
    from attnscope.cli.progress import showing

    if chart is not None:
        checked_file(chart, "--chart", (".html", ".json", ".png", ".svg"))
    if save is not None:
        checked_file(save, "--save", (".json",))
    if model is not None:
        if n is not None:
            raise RefusalError("-n is for patterns without a model: with --model, say --max-tokens instead.")

        asked = {"dtype": dtype, "ratio_error": ratio_error, "leak": leak, "texts": texts, "max_tokens": max_tokens}
        head_widths(model, corpus, {**asked, "k": k or 4, "budget": budget}, out, save, chart, verbose, as_json)
        return
    if n is None or k is None:
        raise RefusalError("Nothing is asked: give -n and -k, or a model with --model.")
    if corpus is not None:
        raise RefusalError("--corpus is what a model reads: name the model with --model.")
    with showing() as progress:
        progress("loading", 0, 0)
        from attnscope.commands.capacity.run import Question, answered
        from attnscope.commands.capacity.widths import Shelf

        shelf = Shelf(fresh=no_cache)
        question = Question.asked(n, k, dtype, ratio_error, leak, seeds)
        looked_up = budget is None and question.in_table(shelf)
        place = named_folder(f"capacity-n{n}-k{k}") if out is None and not looked_up else out
        files: dict[str, Path | None] = {}
        with nullcontext() if place is None else output_folder(place) as folder:
            answer = answered(question, shelf, budget=budget, progress=progress)
            if folder is not None and not answer.interrupted:
                files = _kept(answer, folder, progress)
    if save is not None:
        answer.save(save)
    refusal = None if chart is None else _drawn(answer, chart)
    files |= {"Copy": save, "Chart": None if refusal else chart}
    _say(answer, files, as_json, verbose)
    if refusal:
        raise refusal
    if answer.interrupted:
        kept = f"{count(shelf.kept, 'measurement')} done until then {'is' if shelf.kept == 1 else 'are'} kept"
        done = f"{kept}: run the same command to go on" if shelf.kept else "nothing new was measured or kept"
        typer.echo(f"attnscope: interrupted; {done}.", err=True)
        raise typer.Exit(130)


def _kept(answer: Capacity, folder: Path, progress: Advance) -> dict[str, Path | None]:
    record = answer.save(folder / RECORD)  # before anything is drawn: a drawing can fail, and be made again
    try:
        progress("drawing the page", 0, 0)
        return {"Page": answer.write_page(folder / PAGE), "Record": record}
    except KeyboardInterrupt:
        typer.echo(f"attnscope: interrupted; {clean(str(record))} is written, the page is not.", err=True)
        raise typer.Exit(130) from None


def _say(answer: Capacity, files: Mapping[str, Path | None], as_json: bool, verbose: bool) -> None:
    if as_json:
        from attnscope.cli.output import print_json

        places = {label.lower(): None if path is None else str(path) for label, path in files.items()}
        print_json(answer.to_json() | {"chart": places.pop("chart"), "files": places})
    else:
        from attnscope.reports.terminal import print_record

        print_record(answer, files=files, verbose=verbose)


def _drawn(answer: Capacity, chart: Path) -> RefusalError | None:
    """Why there is nothing to draw: to be said after the answer, which does not depend on a picture."""
    from attnscope.reports.export import save

    try:
        save(answer.chart(), chart)
    except RefusalError as refusal:
        return refusal
    return None
