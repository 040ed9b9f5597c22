"""What commands share: where files go, and how plain data is printed."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from attnscope.core.card import Card
from attnscope.core.errors import RefusalError
from attnscope.core.named_path import named_path
from attnscope.core.plain import plain

WRITTEN = (
    *("survey.json", "survey.partial.json", "report.html"),  # by a scan
    *("collapse.json", "collapse.html", "paths.json", "paths.html", "results.json", "page.html"),
)
LONGEST_STEM = 60  # of a model's name in that of a folder: with four bytes a letter, file systems still take it


def folder_for(model: str, random_init: bool) -> Path:
    """The default output folder: `attnscope-` and the model's own name."""
    path = named_path(model, "model")
    if path.exists():
        path = path.resolve()
        model = (
            path.parent.name if path.name == "config.json" else path.name.removesuffix(".gguf").removesuffix(".json")
        )
    stem = re.sub(r"[^\w.-]+", "-", model)[:LONGEST_STEM].strip("-.")
    return Path(f"attnscope-{stem or 'model'}{'-random' if random_init else ''}")


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
    typer.echo(json.dumps(plain(data), indent=2))


def print_catalog(cards: Iterable[Card]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("measure", "set", "what it says", "source"):
        table.add_column(heading, no_wrap=heading != "what it says")
    for card in cards:
        says = f"{card.summary} [{card.unit}, {_range(card)}]"
        table.add_row(card.name, card.group, says, card.citation.split(",")[0])
    Console(markup=False, highlight=False).print(table)


def _range(card: Card) -> str:
    return f"{card.low:g} and more" if math.isinf(card.high) else f"{card.low:g} to {card.high:g}"


def print_card(card: Card) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    console.print(f"[bold]{card.name}[/bold]  {card.title}")
    console.print(card.summary)
    console.print(f"unit      {card.unit}")
    console.print(f"range     {_range(card)}")
    console.print(f"taken at  {', '.join(card.sites)} ({card.scope})")
    console.print(f"parts     {', '.join(card.parts)}")
    console.print(f"set       {card.group}")
    console.print(f"source    {card.citation}")
    if card.alarm:
        console.print(f"alarm     {card.alarm.relation} {card.alarm.threshold:g}: {card.alarm.meaning}")
