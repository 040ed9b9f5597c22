"""The survey file: one versioned JSON document (compressed where its name ends in .gz), written whole or not at all."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import zlib
from pathlib import Path
from typing import Any

from attnscope.core.bounded import read_all, unpacked
from attnscope.core.card import Card
from attnscope.core.errors import RefusalError
from attnscope.core.visible import parsed
from attnscope.stats.plain import float_to_json
from attnscope.survey.cell import Cell, Key
from attnscope.survey.drafts import clear_abandoned, draft_of, open_draft
from attnscope.survey.provenance import plain
from attnscope.survey.survey import Survey

FORMAT = "attnscope-survey"
VERSION = 1
NAME = "survey.json"  # what a scan calls it in its folder


def to_json(survey: Survey) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "provenance": plain(survey.provenance),
        "cards": {name: _card_to_json(card) for name, card in sorted(survey.cards.items())},
        "cells": [{"key": list(key), **cell.to_json()} for key, cell in sorted(survey.cells.items())],
    }


def from_json(data: dict[str, Any]) -> Survey:
    cards = {name: _card_from_json(card) for name, card in data["cards"].items()}
    cells = {}
    for entry in data["cells"]:
        key = _key_from_json(entry["key"])
        if key.measure not in cards:
            raise ValueError(f"no card explains {key.measure}")
        cells[key] = Cell.from_json(entry)
    provenance = data["provenance"]
    if not all(isinstance(provenance.get(section, {}), dict) for section in ("model", "corpus")):
        raise ValueError("model and corpus are not described")
    return Survey(provenance, cards, cells)


def _key_from_json(words: Any) -> Key:
    """Checked, because arrays are made as deep as the largest layer says."""
    key = Key(*words)
    if not all(isinstance(name, str) for name in key[:4]) or key.layer not in range(10**5):
        raise ValueError(f"{words} is not a place")
    return key


def save(survey: Survey, path: Path) -> Path:
    """Write beside the target and move into place, so that no reader and no crash ever sees half a survey."""
    text = json.dumps(to_json(survey), allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    # A file name that is not UTF-8 becomes question marks rather than an error after hours of work.
    content = text.encode("utf-8", errors="replace")
    if path.name.endswith(".gz"):
        content = gzip.compress(content, mtime=0)  # without a date, equal surveys are equal files
    write_atomically(path, content)
    return path


def write_atomically(path: Path, content: bytes) -> None:
    """All of the content or none of it: a draft in the same folder, forced to disk, then renamed.

    A file that is replaced keeps its modes; what is no file is not replaced. Drafts of killed writers are cleared away.
    """
    draft = draft_of(path)
    try:
        clear_abandoned(path)
        with os.fdopen(open_draft(draft, path), "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(path)
    except OSError as error:
        why = error.strerror or str(error)
        raise RefusalError(
            f"{path} could not be written ({why}): choose another place with --out, or make room there."
        ) from error
    finally:
        with contextlib.suppress(OSError):  # gone already after the rename, or the folder is not there at all
            draft.unlink()


def opened(survey: object) -> Survey:
    """A survey as it is, or read from where a path says: its file, or the folder that a scan wrote."""
    if isinstance(survey, Survey):
        return survey
    if isinstance(survey, str | Path):
        return load(Path(survey))
    raise RefusalError(f"A survey or the path of one is needed, not {type(survey).__name__}.")


def load(path: Path) -> Survey:
    path = path / NAME if path.is_dir() else path
    data = _parse(path, _read(path))
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise RefusalError(f"{path} is not a survey: give the survey file that `attnscope scan` wrote.")
    if data.get("version") != VERSION:
        raise RefusalError(
            f"{path} is a survey of version {data.get('version')} and this attnscope reads version {VERSION}:"
            " scan again, or use the attnscope that wrote it."
        )
    try:
        return from_json(data)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, AssertionError) as error:
        raise RefusalError(f"{path} is damaged inside ({error}): scan again.") from error


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            content = read_all(stream, str(path))
    except FileNotFoundError as error:
        raise RefusalError(f"There is no file {path}: give the survey file that `attnscope scan` wrote.") from error
    except IsADirectoryError as error:
        raise RefusalError(f"{path} is a folder: give the survey file inside it.") from error
    except OSError as error:
        raise RefusalError(f"{path} cannot be read: {error.strerror or error}.") from error
    if content[:2] != b"\x1f\x8b":
        return content
    try:
        return unpacked(content, str(path))
    except (EOFError, OSError, zlib.error) as error:
        raise RefusalError(f"{path} is cut off or damaged (its compression ends early): scan again.") from error


def _parse(path: Path, content: bytes) -> Any:
    try:
        return parsed(content.decode("utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        if content.lstrip().startswith(b'{"format":"attnscope-survey"'):
            raise RefusalError(f"{path} is cut off or damaged: scan again.") from error
        raise RefusalError(f"{path} is not a survey: give the survey file that `attnscope scan` wrote.") from error


def _card_to_json(card: Card) -> dict[str, Any]:
    data = card.to_json()
    return {**data, "low": float_to_json(card.low), "high": float_to_json(card.high)}


def _card_from_json(data: dict[str, Any]) -> Card:
    return Card.from_json({**data, "low": float(data["low"]), "high": float(data["high"])})
