"""merge(parts) -> Survey: shards of one plan, or surveys of several corpora, made one.

    attnscope.merge("run/shards")                          the store of a job array, when every shard is there
    attnscope.merge(["a/survey.json", "b/survey.json"])    what `a | b` gives

Shards are added up one at a time, in the order of their numbers: memory holds one survey and one shard, however many
there are. Every shard must be there once. No torch here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any

from attnscope.core.errors import RefusalError
from attnscope.core.named_path import named_path
from attnscope.core.places import Place, is_address, place
from attnscope.core.progress import Advance, silent
from attnscope.core.words import ranges
from attnscope.records.load import file_of, opened
from attnscope.records.survey.fold import Fold
from attnscope.records.survey.missing import Missing
from attnscope.records.survey.provenance import counted, merge_provenance
from attnscope.records.survey.shard_file import SUFFIX, ShardFile, cards_of, from_bytes
from attnscope.records.survey.store import PLAN, differences
from attnscope.records.survey.survey import Survey

Part = str | Path | Survey


def merge(parts: Part | Iterable[Part], *, partial: bool = False, progress: Advance | None = None) -> Survey:
    """One survey of stores, shard files, or surveys and their files. `partial` takes a store whose shards are not all
    there, and says so in the survey's notes."""
    given = [parts] if isinstance(parts, str | Path | Survey) else list(parts)
    if not given:
        raise RefusalError("There is nothing to merge: name a store of shards, shard files, or surveys.")
    shards = [one for one in given if not isinstance(one, Survey) and _holds_shards(one)]
    if not shards:
        return reduce(lambda a, b: a | b, _each_once(given))
    if len(shards) < len(given):
        raise RefusalError("Shards and surveys are not merged together: merge the shards first, then the surveys.")
    return folded(_files(shards), partial=partial, tell=progress or silent)


def folded(files: Iterable[tuple[Place, str]], *, partial: bool = False, tell: Advance = silent) -> Survey:
    """The survey of these shard files, which must be of one plan, and all of them unless `partial`."""
    every = sorted(files, key=lambda one: (one[1], str(one[0])))
    if not every:
        raise RefusalError("There is no finished shard there: run `attnscope scan ... --store` first.")
    fold, missing = Fold(), Missing()
    first: ShardFile | None = None
    origins: dict[str, dict[str, Any]] = {}
    seen: dict[int, str] = {}
    tokens: dict[str, int] = {}
    sequences = 0
    for step, (where, name) in enumerate(every):
        shard = from_bytes(where.read(name), f"{where}/{name}")
        first = first or shard
        _refuse_strangers(first, shard, f"{where}/{name}")
        number = shard.whose.number
        if number in seen:
            raise RefusalError(f"Shard {number} is there twice ({seen[number]} and {where}/{name}): give it once.")
        seen[number] = f"{where}/{name}"
        fold.add(shard)
        missing |= shard.missing
        origins.setdefault(shard.origin, json.loads(shard.origin))
        sequences += shard.sequences
        for stack, count in shard.tokens.items():
            tokens[stack] = tokens.get(stack, 0) + count
        tell("merging shards", step + 1, len(every))
    assert first is not None
    survey = fold.survey(cards_of(first.cards))
    origin = reduce(merge_provenance, (origins[text] for text in sorted(origins)))
    note = _absent(first.whose.of, seen, partial)
    if note:
        origin["notes"] = [*origin.get("notes", ()), note]
    provenance = counted(origin, sequences, tokens.pop(""), tokens)
    return missing.said_of(Survey(provenance, survey.cards, survey.cells))


def _each_once(given: Iterable[Part]) -> Iterator[Survey]:
    """The same survey twice would count every sequence of it twice."""
    seen: set[str] = set()
    for one in given:
        if not isinstance(one, Survey) and not file_of(named_path(one), Survey).is_file():
            raise RefusalError(
                f"{one} is neither a store of shards nor a survey: name the folder that was the --store of the scan, "
                "or the --out of scans that are done."
            )
        survey = opened(one, Survey)
        digest = hashlib.sha256(json.dumps(survey.to_json(), sort_keys=True).encode()).hexdigest()
        if digest in seen:
            called = "One survey" if isinstance(one, Survey) else f"The survey {one}"
            raise RefusalError(f"{called} is there twice, and each of its sequences would be too: give it once.")
        seen.add(digest)
        yield survey


def _holds_shards(one: str | Path) -> bool:
    if is_address(one):
        return str(one).endswith(SUFFIX) or _is_store(place(one))
    path = Path(one).expanduser()
    return path.name.endswith(SUFFIX) or (path.is_dir() and _is_store(place(path)))


def _is_store(where: Place) -> bool:
    names = where.names()
    return PLAN in names or any(name.endswith(SUFFIX) for name in names)


def _files(given: Iterable[str | Path]) -> Iterator[tuple[Place, str]]:
    for one in given:
        if str(one).endswith(SUFFIX):
            folder, _, name = str(one).rpartition("/")
            yield place(folder or "."), name
        else:
            where = place(one)
            yield from ((where, name) for name in where.names() if name.endswith(SUFFIX))


def _refuse_strangers(first: ShardFile, shard: ShardFile, name: str) -> None:
    if shard.whose.digest != first.whose.digest:
        raise RefusalError(
            f"{name} is a shard of another plan than {first.whose.name} "
            f"({differences(first.whose.plan, shard.whose.plan)}): merge shards of one plan only."
        )
    if shard.cards != first.cards:
        raise RefusalError(f"{name} has other measures than {first.whose.name}: scan all shards with one version.")


def _absent(of: int, seen: dict[int, str], partial: bool) -> str:
    """A note where shards are missing and that is allowed."""
    absent = [number for number in range(of) if number not in seen]
    if not absent:
        return ""
    one = len(absent) == 1
    words = f"{'Shard' if one else 'Shards'} {ranges(absent)} of {of} (counted from 0)"
    if not partial:
        raise RefusalError(
            f"{words} {'is' if one else 'are'} missing: run the scan again with the same --store, which does those "
            "only, or merge what is there with --partial."
        )
    return f"{words} {'was' if one else 'were'} not there when this survey was merged."
