"""`attnscope.merge`: merge the shards of one plan, or surveys of several corpora. Needs no torch.

Shards are added one at a time (`shard_sums.py`), so memory holds one survey and one shard.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any

from attnscope.commands.records import opened
from attnscope.commands.scan.survey.builder import NotMeasured
from attnscope.commands.scan.survey.provenance import counted, merge_provenance
from attnscope.commands.scan.survey.shard_check import cards_of
from attnscope.commands.scan.survey.shard_sums import ShardMerger
from attnscope.commands.scan.survey.shards import PLAN, SUFFIX, ShardFile, differences, from_bytes
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.errors import RefusalError
from attnscope.core.files import named_path
from attnscope.core.folders import Folder, is_address, open_folder
from attnscope.core.progress import Advance, silent
from attnscope.core.words import ranges

Mergeable = str | Path | Survey


def merge(parts: Mergeable | Iterable[Mergeable], *, partial: bool = False, progress: Advance | None = None) -> Survey:
    """Merge shards of one plan, or surveys of several corpora, into one survey.

    Parameters
    ----------
    parts : str, Path, Survey, or iterable of these
        Stores and shard files, or surveys and their files.
    partial : bool
        Accept a store with missing shards, and say so in the notes of the survey.
    progress : callable, optional
        Called as `progress(stage, done, total)`.

    Returns
    -------
    Survey
        The sums are exact, so the order of parts does not matter.

    Raises
    ------
    RefusalError
        If shards are missing, a part is given twice, plans differ, or shards and surveys are mixed.

    Examples
    --------
    >>> survey = attnscope.merge(attnscope.scan("pocket", samples=4, seed=seed) for seed in (0, 1))
    """
    all_parts = [parts] if isinstance(parts, str | Path | Survey) else list(parts)
    if not all_parts:
        raise RefusalError("There is nothing to merge: name a store of shards, shard files, or surveys.")
    shards = [part for part in all_parts if not isinstance(part, Survey) and _holds_shards(part)]
    if not shards:
        return reduce(lambda a, b: a | b, _each_once(all_parts))
    if len(shards) < len(all_parts):
        raise RefusalError("Shards and surveys cannot be merged in one call: merge the shards first, then the surveys.")
    return merge_shards(_files(shards), partial=partial, tell=progress or silent)


def merge_shards(files: Iterable[tuple[Folder, str]], *, partial: bool = False, tell: Advance = silent) -> Survey:
    """Merge shard files of one plan; refuse missing shards unless `partial`."""
    every = sorted(files, key=lambda file: (file[1], str(file[0])))
    if not every:
        raise RefusalError("There are no finished shards to merge: run `attnscope scan ... --store` first.")
    merger, not_measured = ShardMerger(), NotMeasured()
    first: ShardFile | None = None
    origins: dict[str, dict[str, Any]] = {}
    seen: dict[int, str] = {}
    tokens: dict[str, int] = {}
    sequences = 0
    for step, (where, name) in enumerate(every):
        shard = from_bytes(where.read(name), f"{where}/{name}")
        first = first or shard
        _refuse_strangers(first, shard, f"{where}/{name}")
        number = shard.shard_id.number
        if number in seen:
            raise RefusalError(f"Shard {number} is given twice ({seen[number]} and {where}/{name}): give it once.")
        seen[number] = f"{where}/{name}"
        merger.add(shard)
        not_measured |= shard.missing
        origins.setdefault(shard.origin, json.loads(shard.origin))
        sequences += shard.sequences
        for stack, count in shard.tokens.items():
            tokens[stack] = tokens.get(stack, 0) + count
        tell("merging shards", step + 1, len(every))
    assert first is not None
    survey = merger.survey(cards_of(first.cards))
    origin = reduce(merge_provenance, (origins[text] for text in sorted(origins)))
    note = _missing_note(first.shard_id.of, seen, partial)
    if note:
        origin["notes"] = [*origin.get("notes", ()), note]
    provenance = counted(origin, sequences, tokens.pop(""), tokens)
    return not_measured.added_to(Survey(provenance, survey.cards, survey.cells))


def _each_once(parts: Iterable[Mergeable]) -> Iterator[Survey]:
    """Yield the surveys; refuse a survey that is given twice."""
    seen: set[str] = set()
    for part in parts:
        if not isinstance(part, Survey) and not Survey.file_in(named_path(part)).is_file():
            raise RefusalError(
                f"{part} is neither a store of shards nor a survey: name the folder that was `store=` of the scan, or "
                "`out=` of finished scans."
            )
        survey = opened(part, Survey)
        digest = hashlib.sha256(json.dumps(survey.to_json(), sort_keys=True).encode()).hexdigest()
        if digest in seen:
            called = "A survey" if isinstance(part, Survey) else f"The survey {part}"
            raise RefusalError(f"{called} is given twice, so its sequences would count twice: give it once.")
        seen.add(digest)
        yield survey


def _holds_shards(part: str | Path) -> bool:
    if str(part).endswith(SUFFIX):
        return True
    if not is_address(part) and not Path(part).expanduser().is_dir():
        return False
    names = open_folder(part).names()
    return PLAN in names or any(name.endswith(SUFFIX) for name in names)


def _files(parts: Iterable[str | Path]) -> Iterator[tuple[Folder, str]]:
    for part in parts:
        if str(part).endswith(SUFFIX):
            parent, _, name = str(part).rpartition("/")
            yield open_folder(parent or "."), name
        else:
            folder = open_folder(part)
            yield from ((folder, name) for name in folder.names() if name.endswith(SUFFIX))


def _refuse_strangers(first: ShardFile, shard: ShardFile, name: str) -> None:
    if shard.shard_id.digest != first.shard_id.digest:
        raise RefusalError(
            f"{name} has another plan than {first.shard_id.name} "
            f"({differences(first.shard_id.plan, shard.shard_id.plan)}): merge shards of one plan only."
        )
    if shard.cards != first.cards:
        raise RefusalError(f"{name} has other measures than {first.shard_id.name}: scan all shards with one version.")


def _missing_note(of: int, seen: dict[int, str], partial: bool) -> str:
    """Return a note on missing shards, or refuse them unless `partial`."""
    absent = [number for number in range(of) if number not in seen]
    if not absent:
        return ""
    one = len(absent) == 1
    words = f"{'Shard' if one else 'Shards'} {ranges(absent)} of {of} (counted from 0)"
    if not partial:
        raise RefusalError(
            f"{words} {'is' if one else 'are'} missing: scan again with the same `store=`, which runs only those, or "
            "merge the others with `partial=True`."
        )
    return f"{words} {'was' if one else 'were'} missing when this survey was merged."
