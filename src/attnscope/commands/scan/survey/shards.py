"""Shard files, and the store: the folder of the shards of one plan.

    store = Store.open("run/shards", plan, digest, of=64)
    store.done(); store.write(3, survey, not_measured)

A store holds `plan.json` and one file for each finished shard. There is no other state: a process may be killed at any
moment, and the next one sees from the file names which shards are finished.

A shard is `PLAN-0000012.shard`: safetensors with arrays and one JSON document. It holds its plan, its number and what
was read, so shards can be collected from anywhere and merged without the model or torch. It also holds a hash of its
content, because a flipped bit would otherwise be added like any other. A file without one is refused.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnscope.commands.scan.survey.builder import NotMeasured
from attnscope.commands.scan.survey.packed import SUMS, packed
from attnscope.commands.scan.survey.shard_check import ShardDocument, check_arrays, checked_layout, signed_limbs
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.decoding import FieldError, decode, encode
from attnscope.core.errors import RefusalError
from attnscope.core.files import shortened
from attnscope.core.folders import Folder, open_folder
from attnscope.core.hashes import hashed, refuse_damaged

SUFFIX = ".shard"
FORMAT, VERSION = "attnscope-shard", 1
HASH = "sha256"
_DAMAGED = (KeyError, TypeError, ValueError, AttributeError, OverflowError, IndexError, FieldError, RecursionError)


@dataclass(frozen=True)
class ShardId:
    """The plan of a shard (plain data), the hash of the plan, its number, and the number of all shards."""

    plan: Mapping[str, Any]
    digest: str
    number: int
    of: int

    @property
    def name(self) -> str:
        return shard_name(self.digest, self.number)


@dataclass(frozen=True, eq=False)
class ShardFile:
    """The content of a file. `tokens` is a count by stack; the key '' stands for the corpus."""

    shard_id: ShardId
    origin: str  # provenance without counts, as JSON
    cards: str
    sequences: int
    tokens: Mapping[str, int]
    missing: NotMeasured
    layout: bytes
    arrays: Mapping[str, NDArray[Any]]
    weights: str  # cells that count once, as JSON


def shard_name(digest: str, number: int) -> str:
    return f"{digest[:16]}-{number:07d}{SUFFIX}"


def to_bytes(shard_id: ShardId, survey: Survey, missing: NotMeasured) -> bytes:
    from safetensors.numpy import save

    layout, arrays, weights = packed(survey)
    provenance = survey.provenance
    stacks, corpus = provenance["model"]["stacks"], provenance["corpus"]
    document = {
        "format": FORMAT,
        "version": VERSION,
        "plan": shard_id.plan,
        "digest": shard_id.digest,
        "number": shard_id.number,
        "of": shard_id.of,
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
    """Read a shard; `name` is used in refusals."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        arrays: dict[str, NDArray[Any]] = load(data)
        written = arrays.pop(HASH, None)
        if written is None:
            raise ValueError("it has no hash")
        if written.tobytes() != content_hash(arrays):
            raise ValueError("its content does not match its hash")
        told = json.loads(arrays.pop("document").tobytes())
        layout = arrays.pop("layout").tobytes()
        if told["format"] != FORMAT or told["version"] != VERSION:
            raise RefusalError(f"{name} is a shard of another version: merge it with the attnscope that wrote it.")
        document = ShardDocument.from_json(told)
        for total in SUMS:
            magnitude, negative = arrays.pop(f"{total}.magnitude"), arrays.pop(f"{total}.negative")
            arrays[f"{total}.limbs"] = signed_limbs(magnitude, negative)
        check_arrays(checked_layout(layout, document.cards), arrays)
        return ShardFile(
            ShardId(document.plan, document.digest, document.number, document.of),
            document.origin,
            document.cards,
            document.sequences,
            document.tokens,
            document.not_measured(),
            layout,
            arrays,
            document.weights,
        )
    except (SafetensorError, *_DAMAGED) as error:
        raise RefusalError(
            f"{name} is not a complete shard ({shortened(str(error))}): remove it and run its shard again."
        ) from error


def content_hash(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return a hash of all arrays of a file."""
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode() + array.tobytes())
    return digest.digest()


def uncounted(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return provenance without the counts, which is equal for all shards of one scan."""
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
    folder: Folder
    plan: Mapping[str, Any]
    digest: str
    of: int

    @classmethod
    def open(cls, where: str | Path, plan: Mapping[str, Any], digest: str, of: int) -> Store:
        """Create or reopen a store. Refuse a store of another plan."""
        store = cls(open_folder(where), plan, digest, of)
        names = store.folder.names()
        if PLAN in names:
            known = plan_in(store.folder)
            if known["digest"] != digest:
                raise RefusalError(
                    f"The store '{where}' holds shards of another plan ({differences(plan, known['plan'])}): give the "
                    "same options again, name another `store=`, or remove it."
                )
            return store
        if any(not name.startswith(digest[:16]) or not name.endswith(SUFFIX) for name in names):
            raise RefusalError(
                f"The folder '{where}' is not empty and holds no shards: name another one with `store=`."
            )
        document = {"format": _FORMAT, "version": _VERSION, "digest": digest, "of": of, "plan": dict(plan)}
        store.folder.write(PLAN, json.dumps(hashed(document), indent=1).encode())
        return store

    def done(self) -> frozenset[int]:
        """Return the numbers of the finished shards."""
        pattern = re.compile(rf"{self.digest[:16]}-(\d+){re.escape(SUFFIX)}")
        return frozenset(int(match[1]) for name in self.folder.names() if (match := pattern.fullmatch(name)))

    def has(self, number: int) -> bool:
        """Return whether one shard is finished, without listing all."""
        return self.folder.holds(shard_name(self.digest, number))

    def write(self, number: int, survey: Survey, missing: NotMeasured) -> None:
        shard_id = ShardId(self.plan, self.digest, number, self.of)
        self.folder.write(shard_id.name, to_bytes(shard_id, survey, missing))

    def read(self, number: int) -> ShardFile:
        name = shard_name(self.digest, number)
        return from_bytes(self.folder.read(name), f"{self.folder}/{name}")


def remove_store(where: Path) -> None:
    """Remove a store, and no other files."""
    if not where.is_dir():
        return
    for file in where.iterdir():
        if file.name.endswith((SUFFIX, ".part")):
            file.unlink(missing_ok=True)
    (where / PLAN).unlink(missing_ok=True)  # last: until then the folder is a store that can be opened
    if not any(where.iterdir()):
        where.rmdir()


def plan_in(where: Folder) -> dict[str, Any]:
    try:
        known = json.loads(where.read(PLAN))
        if known["format"] != _FORMAT or known["version"] != _VERSION or not isinstance(known["plan"], dict):
            raise ValueError("it is of another kind or version")
        decode(int, known["of"]), decode(str, known["digest"])
        known = refuse_damaged(known, f"{where}/{PLAN}", "remove it and scan into the same store again")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RefusalError(
            f"'{where}' is no store of shards that this version reads ({error!s:.200}): name another folder, or "
            "remove it."
        ) from error
    return dict(known)


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    """Return the names of the settings in which two plans differ. Settings that depend on others are named only if
    nothing else differs."""
    changed = [name for name in sorted({*a, *b}) if a.get(name) != b.get(name)]
    changed = [name for name in changed if name not in ("tokens", "shards")] or ["choice of sequences"]
    return f"another {', '.join(changed[:8]).replace('_', ' ')}"
