"""`attnscope capacity`: how wide must a head be?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnscope.cli.options import (
    HeadDtype,
    Leak,
    RatioError,
    SaveRecord,
    budget_option,
    chart_option,
    json_option,
    seeds_option,
)
from attnscope.core.errors import RefusalError

if TYPE_CHECKING:
    from attnscope.records.capacity import Capacity


def capacity(
    n: Annotated[int, typer.Option("-n", help="Tokens in the context: rows and columns of the pattern.", min=2)],
    k: Annotated[int, typer.Option("-k", help="Keys that a query attends to.", min=1)],
    dtype: HeadDtype = "float32",
    ratio_error: RatioError = 0.1,
    leak: Leak = 0.01,
    seeds: Annotated[int, seeds_option("Patterns to take the median over")] = 3,
    budget: Annotated[float, budget_option("measuring what is not known yet, about.")] = 120.0,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Measure again what was measured before, here or for the package.")
    ] = False,
    save: SaveRecord = None,
    chart: Annotated[Path | None, chart_option("width against n and against k")] = None,
    as_json: Annotated[bool, json_option("the answer")] = False,
) -> None:
    """How wide must a head be to attend to any K of N tokens? Bounds, and what each construction needs."""
    from attnscope.cli.files import checked_file
    from attnscope.cli.output import print_json
    from attnscope.cli.progress import showing

    if chart is not None:
        checked_file(chart, "--chart", (".html", ".json", ".png", ".svg"))
    if save is not None:
        checked_file(save, "--save", (".json",))
    with showing() as progress:
        progress("loading", 0, 0)
        from attnscope.compiling.capacity import capacity as ask

        answer = ask(
            n,
            k,
            dtype,
            ratio_error,
            leak,
            seeds=seeds,
            budget=budget,
            use_cache=not no_cache,
            progress=progress,
        )
    if save is not None:
        answer.save(save)
    refusal = None if chart is None else _drawn(answer, chart)
    drawn = None if refusal else chart
    if as_json:
        print_json(answer.to_json() | {"chart": None if drawn is None else str(drawn)})
    else:
        from attnscope.reporting.terminal import print_record

        print_record(answer, files={"Chart": drawn, "Record": save})
    if refusal:
        raise refusal
    if answer.interrupted:
        typer.echo("attnscope: interrupted; what was measured is kept: run the same command to go on.", err=True)
        raise typer.Exit(130)


def _drawn(answer: Capacity, chart: Path) -> RefusalError | None:
    """Why there is nothing to draw: to be said after the answer, which does not depend on a picture."""
    from attnscope.charts.export import save

    try:
        save(answer.chart(), chart)
    except RefusalError as refusal:
        return refusal
    return None
