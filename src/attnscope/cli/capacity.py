"""`attnscope capacity`: how wide must a head be?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnscope.core.errors import RefusalError
from attnscope.core.visible import clean

if TYPE_CHECKING:
    from attnscope.compiling.capacity import Capacity


def capacity(
    n: Annotated[int, typer.Option("-n", help="Tokens in the context: rows and columns of the pattern.", min=2)],
    k: Annotated[int, typer.Option("-k", help="Keys that a query attends to.", min=1)],
    dtype: Annotated[str, typer.Option(help="float64, float32, bfloat16 or float16.")] = "float32",
    ratio_error: Annotated[
        float, typer.Option(help="How far ratios inside a row may be off: 0.1 keeps them within a factor 1.1.")
    ] = 0.1,
    leak: Annotated[float, typer.Option(help="Share of a row's attention that may fall on zeros.")] = 0.01,
    seeds: Annotated[int, typer.Option(help="Patterns to take the median over: seeds 0, 1, ...", min=1)] = 3,
    budget: Annotated[
        float, typer.Option(help="Seconds for measuring what is not known yet, about.", min=0, metavar="SECONDS")
    ] = 120.0,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Measure again what was measured before, here or for the package.")
    ] = False,
    chart: Annotated[
        Path | None,
        typer.Option(help="Draw width against n and against k: .png, .svg, .html or .json.", metavar="FILE"),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the answer as JSON on standard output, and nothing else.")
    ] = False,
) -> None:
    """How wide must a head be to attend to any K of N tokens? Bounds, and what each construction needs."""
    from attnscope.cli.files import checked_file
    from attnscope.cli.output import print_json
    from attnscope.cli.steps import stepping

    if chart is not None:
        checked_file(chart, "--chart", (".html", ".json", ".png", ".svg"))
    with stepping() as progress:
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
    refusal = None if chart is None else _drawn(answer, chart)
    data = answer.to_json() | {"chart": None if chart is None or refusal else str(chart)}
    if as_json:
        print_json(data)
    else:
        print_capacity(data)
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


def print_capacity(data: Mapping[str, Any]) -> None:
    """What `Capacity.to_json` says, as two tables: what is proved, and what was measured."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from attnscope.compiling.wording import answer_words, bound_lines, need_lines

    console = Console(highlight=False)
    title = f"{data['k']} of {data['n']:,} tokens, {data['dtype']}"
    asked = f"ratio error {data['ratio_error']:g}, leak {data['leak']:g}, in the worst row"
    console.print(Text.assemble("\n", (title, "bold"), ("  " + asked, "dim"), "\n"))
    console.print(Text(answer_words(data)))
    for heading, lines in (("Bounds", bound_lines(data)), ("Constructions", need_lines(data))):
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column(justify="right", style="bold", no_wrap=True)
        table.add_column(style="dim")
        for line in lines:
            table.add_row(*map(Text, line))
        console.print(Text.assemble("\n", (heading, "bold")))
        console.print(table)
    if data.get("chart"):
        console.print(Text.assemble("\n", ("Chart  ", "dim"), clean(data["chart"])), soft_wrap=True)
    console.print()
