"""`attnscope paths MODEL prompts.jsonl`: which heads carry a task, with error bars over its prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

DATA, PAGE, PARTIAL = "task_paths.json", "task_paths.html", "task_paths.partial.jsonl"


def is_task(text: str) -> bool:
    """Whether a file of prompts is named: JSON lines, by their ending."""
    from attnscope.corpus.prompts import SUFFIXES

    return "\n" not in text and text.lower().endswith(SUFFIXES)


def task_paths(
    model: str,
    prompts: str,
    *,
    resume: bool,
    place: Path,
    chart: Path | None,
    as_json: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Values over all prompts; what is done is kept from prompt to prompt."""
    from attnscope.cli.output import output_folder
    from attnscope.cli.progress import showing
    from attnscope.core.visible import clean
    from attnscope.corpus.prompts import prompts as read_prompts

    task = read_prompts(prompts)
    partial = place / PARTIAL
    try:
        with output_folder(place) as folder, showing("prompts") as progress:
            if resume and not partial.exists():
                _echo(f"there is no interrupted run over prompts in {folder}: this one begins at the beginning.")
            if not resume and partial.exists():
                _echo(f"the interrupted run in {folder} will be replaced; --resume would go on with it.")
            progress("loading", 0, 0)
            from attnscope.decomposing.task_paths import task_paths as run

            found = run(model, task, checkpoint=partial, resume=resume, progress=progress, **options)
            found.save(folder / DATA)
            partial.unlink(missing_ok=True)
            progress("drawing the page", 0, 0)
            found.write_page(folder / PAGE)
    except KeyboardInterrupt:
        done = max(len(partial.read_bytes().split(b"\n")) - 2, 0) if partial.exists() else 0
        kept = f"{done} of {len(task)} prompts are kept: go on with --resume" if done else "no prompt was done yet"
        _echo(clean(f"interrupted; {kept}."))
        raise typer.Exit(130) from None
    from attnscope.cli.output import tell

    tell(found, data=place / DATA, page=place / PAGE, chart=chart, as_json=as_json, verbose=verbose)


def _echo(sentence: str) -> None:
    typer.echo(f"attnscope: {sentence}", err=True)
