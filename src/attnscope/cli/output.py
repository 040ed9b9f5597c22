"""What commands share: where files go, and how plain data is printed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from attnscope.core.errors import RefusalError

if TYPE_CHECKING:
    from attnscope.records.record import Record

WRITTEN = (
    *("survey.json", "survey.partial.json", "report.html"),  # by a scan
    *("collapse.json", "collapse.html", "paths.json", "paths.html", "results.json", "page.html"),
    *("treatment.json", "treatment.html", "explanation.json", "explanation.html"),
    *("faithfulness.json", "faithfulness.html", "view.json", "view.html"),
    *("task_paths.json", "task_paths.partial.jsonl", "task_paths.html"),
    *("timeline.json", "timeline.html"),
    *("head.safetensors", "head.html", "capacity.json", "capacity.html", "head_widths.json", "head_widths.html"),
)


@contextmanager
def output_folder(folder: Path) -> Iterator[Path]:
    """Make the output folder now, so that an unwritable one is refused before any work is done.

    If the work is refused, a folder that was made for it and is still empty goes away again.
    """
    for name in WRITTEN:
        if (folder / name).exists() and not (folder / name).is_file():
            raise RefusalError(f"'{folder / name}' is no file, and one must go there: name another folder with --out.")
    new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RefusalError(
            f"The output folder '{folder}' cannot be made ({error.strerror}): name another one with --out."
        ) from None
    if not os.access(folder, os.W_OK):
        raise RefusalError(f"The output folder '{folder}' is not writable: name another one with --out.")
    try:
        yield folder
    finally:
        if new and not any(folder.iterdir()):
            folder.rmdir()


def page_path(out: Path) -> Path:
    """Where a page goes: a file, not a folder and not nothing."""
    if not out.name or (out.exists() and not out.is_file()):
        raise RefusalError(f"'{out}' is not a file name: give --out a name like report.html.")
    return out


def print_json(data: Any) -> None:
    """Strict JSON: numbers that JSON cannot hold become null."""
    from attnscope.core.plain import plain

    typer.echo(json.dumps(plain(data), indent=2))


def tell(found: Record, *, data: Path | None, page: Path, chart: Path | None, as_json: bool, verbose: bool) -> None:
    """What was found, on the screen or as JSON, and where it is kept. JSON is printed before a chart is drawn, because
    drawing can fail."""
    if as_json:
        places = {"data": data, "page": page, "chart": chart}
        files = {name: None if path is None else str(path) for name, path in places.items()}
        print_json({**found.to_json(), "sentences": list(found.sentences()), "files": files})
    if chart is not None:
        from attnscope.charts.export import save

        save(found.chart(), chart)
    if not as_json:
        from attnscope.reporting.terminal import print_record

        print_record(found, files={"Page": page, "Record": data, "Chart": chart}, verbose=verbose)
