"""A store: the folder in which the shards of one plan gather, whoever makes them.

    store = Store.open("run/shards", plan, digest, of=64)
    store.done(); store.write(3, survey, missing)

`plan.json` says which plan, and beside it stands one file for each finished shard, whole or not there: nothing else is
remembered anywhere, so a process may be killed at any moment, and whoever comes next reads what is done from the names.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnscope.commands.scan.survey.cell import Cell, Key
from attnscope.commands.scan.survey.ledger import Missing
from attnscope.commands.scan.survey.packed import SUMS, packed
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.card import Card
from attnscope.core.decoding import FieldError, decode, encode
from attnscope.core.errors import RefusalError
from attnscope.core.places import Place, place

# One shard of a survey as a file: `PLAN-0000012.shard`, safetensors with arrays and one JSON document beside them.
#
# It says of itself which plan it belongs to, which of how many shards it is, and what was read, so that shards can be
# gathered from anywhere and merged where neither the model nor torch is. A hash of all of it lies inside: a bit that a
# disk or a network turned would otherwise be added up like any other. (Files of before the hash are read without it.)

SUFFIX = ".shard"
FORMAT, VERSION = "attnscope-shard", 1
HASH = "sha256"
_DAMAGED = (KeyError, TypeError, ValueError, AttributeError, OverflowError, IndexError, FieldError)


@dataclass(frozen=True)
class Whose:
    """A place among the shards of a plan. `plan` is plain data, `digest` its hash."""

    plan: Mapping[str, Any]
    digest: str
    number: int
    of: int

    @property
    def name(self) -> str:
        return shard_name(self.digest, self.number)


@dataclass(frozen=True, eq=False)
class ShardFile:
    """What a file holds. `tokens` by stack, the corpus's own under ''."""

    whose: Whose
    origin: str  # provenance without counts, as JSON
    cards: str
    sequences: int
    tokens: Mapping[str, int]
    missing: Missing
    layout: bytes
    arrays: Mapping[str, NDArray[Any]]
    weights: str  # cells that count once, as JSON


def shard_name(digest: str, number: int) -> str:
    return f"{digest[:16]}-{number:07d}{SUFFIX}"


def to_bytes(whose: Whose, survey: Survey, missing: Missing) -> bytes:
    from safetensors.numpy import save

    layout, arrays, weights = packed(survey)
    provenance = survey.provenance
    stacks, corpus = provenance["model"]["stacks"], provenance["corpus"]
    document = {
        "format": FORMAT,
        "version": VERSION,
        "plan": whose.plan,
        "digest": whose.digest,
        "number": whose.number,
        "of": whose.of,
        "sequences": corpus["sequences"],
        "tokens": {"": corpus["tokens"], **{stack["name"]: stack["tokens"] for stack in stacks}},
        "missing": missing.to_json(),
        "weights": json.dumps([{"key": list(key), **cell.to_json()} for key, cell in sorted(weights.items())]),
        "origin": json.dumps(uncounted(provenance), sort_keys=True, ensure_ascii=False),
        "cards": json.dumps({name: encode(card) for name, card in survey.cards.items()}, sort_keys=True),
    }
    stored = {name: np.ascontiguousarray(array) for name, array in arrays.items() if not name.endswith(".limbs")}
    for name in SUMS:
        limbs = arrays[f"{name}.limbs"]
        stored[f"{name}.magnitude"] = np.ascontiguousarray(np.abs(limbs).astype(np.uint32))
        stored[f"{name}.negative"] = np.asarray((limbs < 0).any(axis=1), np.uint8)
    for name, content in (("document", json.dumps(document).encode()), ("layout", layout.to_bytes())):
        stored[name] = np.frombuffer(content, np.uint8)
    stored[HASH] = np.frombuffer(content_hash(stored), np.uint8)
    data: bytes = save(stored)
    return data


def from_bytes(data: bytes, name: str) -> ShardFile:
    """Read back; `name` goes into refusals."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        arrays: dict[str, NDArray[Any]] = load(data)
        written = arrays.pop(HASH, None)
        if written is not None and written.tobytes() != content_hash(arrays):
            raise ValueError("it is not what was written")
        document = json.loads(arrays.pop("document").tobytes())
        layout = arrays.pop("layout").tobytes()
        if document["format"] != FORMAT or document["version"] != VERSION:
            raise RefusalError(f"{name} is a shard of another version: merge it with the attnscope that wrote it.")
        for one in SUMS:
            signs = 1 - 2 * arrays.pop(f"{one}.negative").astype(np.int64)
            arrays[f"{one}.limbs"] = arrays.pop(f"{one}.magnitude").astype(np.int64) * signs[:, None]
        whose = Whose(document["plan"], str(document["digest"]), int(document["number"]), int(document["of"]))
        return ShardFile(
            whose,
            document["origin"],
            document["cards"],
            int(document["sequences"]),
            document["tokens"],
            Missing.from_json(document["missing"]),
            layout,
            arrays,
            document["weights"],
        )
    except (SafetensorError, *_DAMAGED) as error:
        raise RefusalError(f"{name} is no whole shard ({error}): remove it and run its shard again.") from error


def content_hash(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Of all arrays of a file but the hash itself."""
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode() + array.tobytes())
    return digest.digest()


def cards_of(text: str) -> dict[str, Card]:
    cards: dict[str, Card] = decode(dict[str, Card], json.loads(text))
    return dict(sorted(cards.items()))


def weights_of(text: str) -> dict[Key, Cell]:
    return {Key(*entry["key"]): Cell.from_json(entry) for entry in json.loads(text)}


def uncounted(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """What shards of one scan have in common: where they come from, without how much was read."""
    model, corpus = provenance["model"], provenance["corpus"]
    stacks = [{name: value for name, value in stack.items() if name != "tokens"} for stack in model["stacks"]]
    counts = ("sequences", "tokens")
    return {
        **provenance,
        "model": {**model, "stacks": stacks},
        "corpus": {name: value for name, value in corpus.items() if name not in counts},
    }


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
                    "same options again, name another `store=`, or remove it."
                )
            return store
        if there:
            raise RefusalError(f"The folder '{where}' is not empty and holds no shards: name another `store=`.")
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
