"""Texts with a class each: what a person says of them, where a test must know the truth.

texts, classes = labelled("reviews.jsonl", "sentiment")          lines such as {"text": ..., "sentiment": "positive"}
texts, classes = labelled(["a text", "another"], ["good", "bad"])
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from attnscope.core.bounded import read_all, unpacked
from attnscope.core.errors import RefusalError
from attnscope.corpus.corpus import Corpus
from attnscope.corpus.formats import JSON_LINES
from attnscope.corpus.read import corpus_path, read

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
            f'{{"text": "...", "{label}": "positive"}}, or leave --labels out to follow what the model itself says.'
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
            f"{place} has no class in the field '{label}': give every text one, or leave --labels out to follow what "
            "the model itself says."
        )
    return found
