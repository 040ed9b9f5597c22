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

from attnscope.core.errors import RefusalError, nearest
from attnscope.core.files import named_path, read_all, refusal_words, unpacked
from attnscope.data.corpus import Corpus
from attnscope.data.formats import JSON_LINES, refuse_half_characters
from attnscope.data.read import corpus_path, read

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


# Texts with a class each: what a person says of them, where a test must know the truth.
#
# texts, classes = labelled("reviews.jsonl", "sentiment")          lines such as {"text": ..., "sentiment": "positive"}
# texts, classes = labelled(["a text", "another"], ["good", "bad"])

Class = str | int


def labelled(
    source: str | Path | Iterable[Any], labels: str | Sequence[Class], field: str = "text"
) -> tuple[Corpus, tuple[Class, ...]]:
    """The texts of a .jsonl file and the class that the field `labels` of each line names; or texts in Python with
    their classes. Refused where a text has none."""
    if isinstance(source, str | Path):
        if not isinstance(labels, str):
            raise RefusalError("Classes of a file are in one of its fields: name it, such as 'label'.")
        corpus = read(source, field=field)
        given = _of_file(corpus_path(str(source)), labels)
    else:
        corpus = read(list(source))
        given = () if isinstance(labels, str) else tuple(labels)
    if corpus.targets is not None:
        raise RefusalError(f"{corpus.name} holds pairs of source and target, which have no class: give single texts.")
    if len(given) != len(corpus.documents):
        raise RefusalError(
            f"{corpus.name} has {len(corpus.documents)} texts and {len(given)} labels: give every text that is not "
            "empty one class."
        )
    return corpus, given


def _of_file(path: Path, label: str) -> tuple[Class, ...]:
    kinds = [suffix.lower() for suffix in path.suffixes]
    packed = kinds[-1:] == [".gz"]
    written_as = (kinds[:-1] if packed else kinds)[-1:]
    if path.is_dir() or not set(written_as) & set(JSON_LINES):
        raise RefusalError(
            f"{path} has no labels: give a .jsonl file with lines such as "
            f'{{"text": "...", "{label}": "positive"}}, or leave `labels=` out to follow what the model itself says.'
        )
    with path.open("rb") as stream:
        data = read_all(stream, str(path))
    lines = (unpacked(data, str(path)) if packed else data).decode("utf-8", "replace").split("\n")
    return tuple(
        _class(line, f"{path}, line {number},", label) for number, line in enumerate(lines, start=1) if line.strip()
    )


def _class(line: str, place: str, label: str) -> Class:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RefusalError(f"{place} is not JSON ({error}): every line must be one JSON object.") from error
    found = record.get(label) if isinstance(record, dict) else None
    if isinstance(found, bool) or not isinstance(found, str | int):
        raise RefusalError(
            f"{place} has no class in the field '{label}': give every text one, or leave `labels=` out to follow what "
            "the model itself says."
        )
    return found
