"""Read the file of a task: prompts with the correct token, or texts with their classes.

    {"text": "The capital of France is", "target": " Paris", "against": " Rome"}   `against` is optional
    {"text": "A film like no other", "sentiment": "positive"}                        with labels="sentiment"

Either every line has `against` or none has, because a logit and a difference of logits cannot be averaged.
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
from attnscope.core.opening import opened
from attnscope.data.corpus import Corpus
from attnscope.data.formats import JSON_LINES, json_line, refuse_half_characters
from attnscope.data.read import corpus_path, read

SUFFIXES = (".jsonl", ".ndjson")
FIELDS = ("text", "target", "against")
EXAMPLE = '{"text": "The capital of France is", "target": " Paris"}'


@dataclass(frozen=True)
class Prompt:
    """A text, the correct token, and the token it is compared with; `place` is the prompt's file and line."""

    text: str
    target: str | int
    against: str | int | None
    place: str


@dataclass(frozen=True)
class Prompts:
    """All prompts of a task; reports call them `name`."""

    name: str
    every: tuple[Prompt, ...]

    @property
    def sha256(self) -> str:
        """Hash of the prompts, independent of the file's name and spacing."""
        asked = [[prompt.text, prompt.target, prompt.against] for prompt in self.every]
        return hashlib.sha256(json.dumps(asked, ensure_ascii=False).encode("utf-8")).hexdigest()

    def __len__(self) -> int:
        return len(self.every)


def prompts(source: str | Path | Prompts | Iterable[Any]) -> Prompts:
    """Return the prompts of a file of JSON lines, or of mappings with the same fields."""
    if isinstance(source, Prompts):
        return source
    if isinstance(source, str | Path):
        return _file(named_path(source, "file"))
    if isinstance(source, Mapping):
        raise RefusalError("A task is a list of prompts: give a list, even for a single prompt.")
    return _of_one_kind("prompts", [_prompt(item, f"Prompt {number}") for number, item in enumerate(source, start=1)])


def _file(path: Path) -> Prompts:
    try:
        with opened(path) as stream:
            text = read_all(stream, str(path)).decode("utf-8-sig")
    except OSError as error:
        raise RefusalError(refusal_words(error, str(path), "file of prompts")) from None
    except UnicodeDecodeError as error:
        raise RefusalError(f"{path} is not UTF-8 (byte {error.start}): save it again as UTF-8.") from None
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    example = f"object like {EXAMPLE}"
    read = [_prompt(json_line(line, f"{path.name}, line {n},", example), f"{path.name}, line {n}") for n, line in lines]
    return _of_one_kind(path.name, read)


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
        raise RefusalError(f"{place}, has a 'text' that is not a string: write {EXAMPLE}.")
    refuse_half_characters(text, f"{place},")
    for name, token in (("target", target), ("against", against)):
        if isinstance(token, bool) or not isinstance(token, str | int | None) or token == "":
            raise RefusalError(f"{place}, has a {name} that is not a token: give its text, or its number.")
        if isinstance(token, str):
            refuse_half_characters(token, f"{place},")
    return Prompt(text, target, against, place)  # type: ignore[arg-type]  # checked above, by name


def _of_one_kind(name: str, read: Sequence[Prompt]) -> Prompts:
    if not read:
        raise RefusalError(f"There is no prompt in {name}: write one a line, such as {EXAMPLE}.")
    other = next((prompt for prompt in read if (prompt.against is None) != (read[0].against is None)), None)
    if other is not None:
        which, has = ("has", "none") if other.against is not None else ("has no", "one")
        raise RefusalError(
            f"{other.place}, {which} 'against' and {read[0].place}, has {has}: a logit and a difference of two cannot "
            "be averaged, so give it to every prompt or to none."
        )
    return Prompts(name, tuple(read))


Class = str | int


def labelled(
    source: str | Path | Iterable[Any], labels: str | Sequence[Class], field: str = "text"
) -> tuple[Corpus, tuple[Class, ...]]:
    """Return texts and their classes. In a .jsonl file, the field `labels` of each line names the class; texts in
    Python come with a list of classes. Refuse texts without a class.

        texts, classes = labelled("reviews.jsonl", "sentiment")
        texts, classes = labelled(["a text", "another"], ["good", "bad"])
    """
    if isinstance(source, str | Path):
        if not isinstance(labels, str):
            raise RefusalError("The classes must be in a field of the file: give its name, such as 'label'.")
        corpus = read(source, field=field)
        classes = _of_file(corpus_path(str(source)), labels)
    else:
        corpus = read(list(source))
        classes = () if isinstance(labels, str) else tuple(labels)
    if corpus.targets is not None:
        raise RefusalError(f"{corpus.name} holds pairs of source and target, which have no class: give single texts.")
    if len(classes) != len(corpus.documents):
        raise RefusalError(
            f"{corpus.name} has {len(corpus.documents)} texts and {len(classes)} labels: give every text that is not "
            "empty one class."
        )
    return corpus, classes


def _of_file(path: Path, label: str) -> tuple[Class, ...]:
    kinds = [suffix.lower() for suffix in path.suffixes]
    packed = kinds[-1:] == [".gz"]
    written_as = (kinds[:-1] if packed else kinds)[-1:]
    if path.is_dir() or not set(written_as) & set(JSON_LINES):
        raise RefusalError(
            f"{path} has no labels: give a .jsonl file with lines such as "
            f'{{"text": "...", "{label}": "positive"}}, or leave `labels=` out to explain '
            "the model's own predictions."
        )
    with opened(path) as stream:
        data = read_all(stream, str(path))
    lines = (unpacked(data, str(path)) if packed else data).decode("utf-8", "replace").split("\n")
    return tuple(
        _class(line, f"{path}, line {number},", label) for number, line in enumerate(lines, start=1) if line.strip()
    )


def _class(line: str, place: str, label: str) -> Class:
    record = json_line(line, place)
    found = record.get(label) if isinstance(record, dict) else None
    if isinstance(found, bool) or not isinstance(found, str | int):
        raise RefusalError(
            f"{place} has no class in the field '{label}': give every text one, or leave `labels=` out to follow what "
            "the model itself says."
        )
    return found
