"""A store: the folder in which the shards of one plan gather, whoever makes them.

    store = Store.open("run/shards", plan, digest, of=64)
    store.done(); store.write(3, survey, missing)

`plan.json` says which plan, and beside it stands one file for each finished shard, whole or not there: nothing else is
remembered anywhere, so a process may be killed at any moment, and whoever comes next reads what is done from the names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnscope.core.errors import RefusalError
from attnscope.core.places import Place, place
from attnscope.records.survey.missing import Missing
from attnscope.records.survey.shard_file import SUFFIX, ShardFile, Whose, from_bytes, shard_name, to_bytes
from attnscope.records.survey.survey import Survey

PLAN = "plan.json"
_FORMAT, _VERSION = "attnscope-shards", 1


@dataclass(frozen=True)
class Store:
    place: Place
    plan: Mapping[str, Any]
    digest: str
    of: int

    @classmethod
    def open(cls, where: str | Path, plan: Mapping[str, Any], digest: str, of: int) -> Store:
        """Make the folder, or go on in it; one that holds shards of another plan is refused."""
        store = cls(place(where), plan, digest, of)
        there = store.place.names()
        if PLAN in there:
            known = plan_in(store.place)
            if known["digest"] != digest:
                raise RefusalError(
                    f"The store '{where}' holds shards of another plan ({differences(plan, known['plan'])}): give the "
                    "same options again, name another --store, or remove it."
                )
            return store
        if there:
            raise RefusalError(f"The folder '{where}' is not empty and holds no shards: name another one with --store.")
        document = {"format": _FORMAT, "version": _VERSION, "digest": digest, "of": of, "plan": dict(plan)}
        store.place.write(PLAN, json.dumps(document, indent=1).encode())
        return store

    def done(self) -> frozenset[int]:
        """Numbers of the shards that are there."""
        prefix = f"{self.digest[:16]}-"
        found = (name.removeprefix(prefix).removesuffix(SUFFIX) for name in self.place.names() if _is(name, prefix))
        return frozenset(int(number) for number in found if number.isdecimal())

    def has(self, number: int) -> bool:
        """Whether one shard is there, without a list of all."""
        return self.place.holds(shard_name(self.digest, number))

    def write(self, number: int, survey: Survey, missing: Missing) -> None:
        whose = Whose(self.plan, self.digest, number, self.of)
        self.place.write(whose.name, to_bytes(whose, survey, missing))

    def read(self, number: int) -> ShardFile:
        name = shard_name(self.digest, number)
        return from_bytes(self.place.read(name), f"{self.place}/{name}")


def remove_store(where: Path) -> None:
    """Take away a store, and nothing that is not one."""
    if not where.is_dir():
        return
    for one in where.iterdir():
        if one.name == PLAN or one.name.endswith((SUFFIX, ".part")):
            one.unlink(missing_ok=True)
    if not any(where.iterdir()):
        where.rmdir()


def plan_in(where: Place) -> dict[str, Any]:
    try:
        known = json.loads(where.read(PLAN))
        if known["format"] != _FORMAT or known["version"] != _VERSION or not isinstance(known["plan"], dict):
            raise ValueError("it is of another kind or version")
        int(known["of"]), str(known["digest"])
    except (ValueError, KeyError, TypeError) as error:
        raise RefusalError(
            f"'{where}' is no store of shards that this version reads ({error}): name another folder, or remove it."
        ) from error
    return dict(known)


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """In which settings two plans differ. The fingerprint of the sequences follows from others, and is named last."""
    changed = [name for name in sorted({*one, *other}) if one.get(name) != other.get(name)]
    changed = [name for name in changed if name not in ("tokens", "shards")] or ["choice of sequences"]
    return f"another {', '.join(changed).replace('_', ' ')}"


def _is(name: str, prefix: str) -> bool:
    return name.startswith(prefix) and name.endswith(SUFFIX)
