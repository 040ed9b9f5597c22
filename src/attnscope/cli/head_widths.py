"""`attnscope capacity --model`: how wide must the heads of this model be?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

RECORD, PAGE = "head_widths.json", "head_widths.html"


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
    from attnscope.cli.default_folder import named_folder
    from attnscope.cli.names import check_model
    from attnscope.cli.output import output_folder, print_json
    from attnscope.cli.progress import showing

    check_model(model)
    with showing() as progress:
        progress("loading", 0, 0)
        from attnscope.compiling.head_widths import BUDGET
        from attnscope.compiling.head_widths import head_widths as measured

        place = named_folder(f"capacity-{Path(model).name}") if out is None else out
        budget = BUDGET if asked["budget"] is None else asked["budget"]
        with output_folder(place) as folder:
            answer = measured(model, corpus, **{**asked, "budget": budget}, progress=progress)
            record = answer.save(folder / RECORD)
            files: dict[str, Path | None] = {"Page": answer.write_page(folder / PAGE), "Record": record, "Copy": save}
    if save is not None:
        answer.save(save)
    if chart is not None:
        from attnscope.charts.export import save as save_chart

        save_chart(answer.chart(), chart)
    files["Chart"] = chart
    if as_json:
        places = {label.lower(): None if path is None else str(path) for label, path in files.items()}
        print_json(answer.to_json() | {"chart": places.pop("chart"), "files": places})
    else:
        from attnscope.reporting.terminal import print_record

        print_record(answer, files=files, verbose=verbose)
    if answer.interrupted:
        typer.echo("attnscope: interrupted; the heads done until then are in the record.", err=True)
        raise typer.Exit(130)
