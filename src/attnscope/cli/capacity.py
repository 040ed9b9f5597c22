"""`attnscope capacity`: how wide must a head be?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnscope.cli.options import (
    SAVE,
    HeadDtype,
    Leak,
    RatioError,
    budget_option,
    chart_option,
    json_option,
    max_tokens_option,
    seeds_option,
    with_requests,
)
from attnscope.cli.output import say
from attnscope.cli.runner import INTERRUPTED, Output, Run, running
from attnscope.core.errors import RefusalError
from attnscope.core.words import count

if TYPE_CHECKING:
    from attnscope.reports.record import Record


@with_requests(
    out=typer.Option(
        help="Folder for capacity.json and capacity.html (with --model: head_widths.json and head_widths.html). "
        "Default: attnscope-capacity-nN-kK or attnscope-capacity-MODEL, but nothing is written if the table in the "
        "package has the answer.",
        metavar="FOLDER",
    ),
    save=SAVE,
    chart=chart_option("width against n and against k"),
    as_json=json_option("the answer"),
)
def capacity(
    n: Annotated[
        int | None, typer.Option("-n", help="Tokens in the context: rows and columns of the pattern.", min=2)
    ] = None,
    k: Annotated[
        int | None, typer.Option("-k", help="Keys that a query attends to. Default with --model: 4.", min=1)
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Instead of -n: measure what every head of this model attends to, and the width that it needs."
        ),
    ] = None,
    corpus: Annotated[
        str | None, typer.Option(help="With --model: texts to read, a file or folder. Default: a small embedded text.")
    ] = None,
    texts: Annotated[int, typer.Option(help="With --model: how many texts are read.", min=1)] = 2,
    max_tokens: Annotated[int, max_tokens_option(when="With --model")] = 48,
    dtype: HeadDtype = "float32",
    ratio_error: RatioError = 0.1,
    leak: Leak = 0.01,
    seeds: Annotated[int, seeds_option("Patterns to take the median over")] = 3,
    budget: Annotated[
        float | None,
        budget_option(
            "new measurements (approximate). Default: 120, or none if the table in the package has the answer."
        ),
    ] = None,
    no_cache: Annotated[
        bool,
        typer.Option("--no-cache", help="Measure again, and ignore earlier measurements and the table in the package."),
    ] = False,
    output: Output = Output(),
) -> None:
    """How wide must a head be to attend to any K of N tokens? What is proved, and what each construction needs.

    With --model: the narrowest head found that attends to the same keys, for every head of a model.
    """
    from attnscope.cli.files import named_folder

    if model is not None:
        if n is not None:
            raise RefusalError("-n is for patterns without a model: with --model, give --max-tokens instead.")
        accuracy = {"dtype": dtype, "ratio_error": ratio_error, "leak": leak}
        limit = {} if budget is None else {"budget": budget}
        _head_widths(model, corpus, output, k=k or 4, texts=texts, max_tokens=max_tokens, **accuracy, **limit)
        return
    if n is None or k is None:
        raise RefusalError("There is nothing to compute: give -n and -k, or a model with --model.")
    if corpus is not None:
        raise RefusalError("--corpus needs a model that reads it: name the model with --model.")
    with running(output) as run:
        from attnscope.commands.capacity.run import Question, answered
        from attnscope.commands.capacity.widths import Shelf
        from attnscope.heads.accuracy import checked_accuracy

        shelf = Shelf(fresh=no_cache)
        question = Question.asked(n, k, checked_accuracy(ratio_error, leak, dtype), seeds)
        looked_up = budget is None and question.in_table(shelf)
        if output.out is not None or not looked_up:
            run.enter(output.out or named_folder(f"capacity-n{n}-k{k}"))
        answer = answered(question, shelf, budget=budget, progress=run.progress)
        if run.folder != Path() and not answer.interrupted:
            run.keep(answer, "capacity.json", "capacity.html")
    _tell(run, answer)
    if answer.interrupted:
        kept = f"{count(shelf.kept, 'measurement')} done so far {'is' if shelf.kept == 1 else 'are'} kept"
        done = f"{kept}: run the same command to continue" if shelf.kept else "nothing new was measured or kept"
        say(f"interrupted; {done}.")
        raise typer.Exit(INTERRUPTED)


def _head_widths(model: str, corpus: str | None, output: Output, **options: Any) -> None:
    """Measure the widths that the heads of a model need."""
    from attnscope.cli.files import named_folder
    from attnscope.cli.options import check_model

    check_model(model)
    with running(output, output.out or named_folder(f"capacity-{Path(model).name}")) as run:
        from attnscope.commands.head_widths.run import head_widths as twin

        answer = twin(model, corpus, progress=run.progress, **options)
        run.keep(answer, "head_widths.json", "head_widths.html")
    _tell(run, answer)
    if answer.interrupted:
        say("interrupted; the heads that were done are in the record.")
        raise typer.Exit(INTERRUPTED)


def _tell(run: Run, answer: Record) -> None:
    def printed(files: dict[str, str | None]) -> dict[str, Any]:
        return answer.to_json() | {"chart": files.pop("chart"), "files": files}

    run.files.setdefault("Copy", None)
    run.tell(answer, printed=printed)
