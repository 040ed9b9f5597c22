"""What commands share: where files go, and how plain data is printed."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer

from attnscope.core.card import Card
from attnscope.core.errors import RefusalError


def folder_for(model: str, random_init: bool) -> Path:
    """The default output folder: `attnscope-` and the last word of the model's name."""
    stem = re.sub(r"[^\w.-]+", "-", Path(model).resolve().stem if Path(model).exists() else model).strip("-.")
    return Path(f"attnscope-{stem or 'model'}{'-random' if random_init else ''}")


def prepare_folder(folder: Path) -> Path:
    """Make the output folder now, so that an unwritable one is refused before any work is done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RefusalError(
            f"The output folder '{folder}' cannot be made ({error.strerror}): name another one with --out."
        ) from None
    if not os.access(folder, os.W_OK):
        raise RefusalError(f"The output folder '{folder}' is not writable: name another one with --out.")
    return folder


def survey_path(path: Path) -> Path:
    """A survey file, given itself or the folder that a scan wrote."""
    return path / "survey.json" if path.is_dir() else path


def print_json(data: Any) -> None:
    """Strict JSON: numbers that JSON cannot hold become null."""
    typer.echo(json.dumps(_strict(data), indent=2))


def _strict(data: Any) -> Any:
    if isinstance(data, dict):
        return {str(key): _strict(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_strict(value) for value in data]
    if isinstance(data, float) and not math.isfinite(data):
        return None
    return data


def print_catalog(cards: Iterable[Card]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("measure", "set", "of", "unit", "what it says", "source"):
        table.add_column(heading, overflow="fold", no_wrap=heading in ("measure", "set", "of"))
    for card in cards:
        table.add_row(card.name, card.group, card.scope, card.unit, card.summary, card.citation)
    Console().print(table)


def print_card(card: Card) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    console.print(f"[bold]{card.name}[/bold]  {card.title}")
    console.print(card.summary)
    console.print(f"unit      {card.unit}")
    console.print(f"range     {card.low:g} to {'unbounded' if math.isinf(card.high) else f'{card.high:g}'}")
    console.print(f"taken at  {', '.join(card.sites)} ({card.scope})")
    console.print(f"parts     {', '.join(card.parts)}")
    console.print(f"set       {card.group}")
    console.print(f"source    {card.citation}")
    if card.alarm:
        console.print(f"alarm     {card.alarm.relation} {card.alarm.threshold:g}: {card.alarm.meaning}")
