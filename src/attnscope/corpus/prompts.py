"""A task as a file: one prompt a line, with the token that is right and, if wished, one that is wrong.

    {"text": "The capital of France is", "target": " Paris", "against": " Rome"}

Numbers of several prompts are only added up where they are of one kind: either every line has `against`, or none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnscope.core.bounded import read_all
from attnscope.core.errors import RefusalError, nearest
from attnscope.core.named_path import named_path, refusal_words
from attnscope.corpus.formats import refuse_half_characters

SUFFIXES = (".jsonl", ".ndjson")
FIELDS = ("text", "target", "against")
EXAMPLE = '{"text": "The capital of France is", "target": " Paris"}'


@dataclass(frozen=True)
class Prompt:
    """What is read, which token is right, and which one it is compared with; `place` says where it was written."""

    text: str
    target: str | int
    against: str | int | None
    place: str


@dataclass(frozen=True)
class Prompts:
    """All prompts of a task; `name` is what they are called in reports."""

    name: str
    every: tuple[Prompt, ...]

    @property
    def sha256(self) -> str:
        """Of what is asked, whatever the file is called and however it is spaced."""
        asked = [[one.text, one.target, one.against] for one in self.every]
        return hashlib.sha256(json.dumps(asked, ensure_ascii=False).encode("utf-8")).hexdigest()

    def __len__(self) -> int:
        return len(self.every)


def prompts(given: str | Path | Prompts | Iterable[Any]) -> Prompts:
    """A file of JSON lines, or mappings with the same fields."""
    if isinstance(given, Prompts):
        return given
    if isinstance(given, str | Path):
        return _file(named_path(given, "file"))
    if isinstance(given, Mapping):
        raise RefusalError("A task is several prompts: give a list of them, also where it is one.")
    read = [_prompt(one, f"Prompt {number}") for number, one in enumerate(given, start=1)]
    return _of_one_kind("prompts", read)


def _file(path: Path) -> Prompts:
    try:
        with path.open("rb") as stream:
            text = read_all(stream, str(path)).decode("utf-8-sig")
    except OSError as error:
        raise RefusalError(refusal_words(error, str(path), "file of prompts")) from None
    except UnicodeDecodeError as error:
        raise RefusalError(f"{path} is not UTF-8 (byte {error.start}): save it again as UTF-8.") from None
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    return _of_one_kind(path.name, [_line(line, f"{path.name}, line {number}") for number, line in lines])


def _line(line: str, place: str) -> Prompt:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RefusalError(f"{place}, is not JSON ({error}): every line must be one object like {EXAMPLE}.") from None
    return _prompt(record, place)


def _prompt(record: Any, place: str) -> Prompt:
    if isinstance(record, Prompt):
        return record
    if not isinstance(record, Mapping):
        raise RefusalError(f"{place}, is not an object: write {EXAMPLE}.")
    for name in record:
        if name not in FIELDS:
            raise RefusalError(
                f"{place}, has a field '{name}', and a prompt has {', '.join(FIELDS)} only: rename or remove it."
                f"{nearest(str(name), FIELDS)}"
            )
    for name in FIELDS[:2]:
        if record.get(name) is None:
            raise RefusalError(f"{place}, has no '{name}': write {EXAMPLE}.")
    text, target, against = (record.get(name) for name in FIELDS)
    if not isinstance(text, str) or not text:
        raise RefusalError(f"{place}, has a text that is not one: write {EXAMPLE}.")
    refuse_half_characters(text, f"{place},")
    for name, token in (("target", target), ("against", against)):
        if isinstance(token, bool) or not isinstance(token, str | int | None) or token == "":
            raise RefusalError(f"{place}, has a {name} that is no token: give its text, or its number.")
    return Prompt(text, target, against, place)  # type: ignore[arg-type]  # checked above, by name


def _of_one_kind(name: str, read: Sequence[Prompt]) -> Prompts:
    if not read:
        raise RefusalError(f"There is no prompt in {name}: write one a line, such as {EXAMPLE}.")
    other = next((one for one in read if (one.against is None) != (read[0].against is None)), None)
    if other is not None:
        which, has = ("has", "none") if other.against is not None else ("has no", "one")
        raise RefusalError(
            f"{other.place}, {which} 'against' and {read[0].place}, has {has}: a logit and a difference of two cannot "
            "be added up, so give it to every prompt or to none."
        )
    return Prompts(name, tuple(read))
