"""run.json: what a run is of, before its first look.

A run goes on only with the model it began with. Training changes values, so a model is known by its structure: its
class and the names and shapes of its parameters (`fingerprint`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnscope.core.card import Card
from attnscope.core.errors import RefusalError
from attnscope.core.files import read_document, write_atomically
from attnscope.core.plain import plain
from attnscope.records.decoding import FieldError, decode, encode

HEADER = "run.json"
FORMAT = "attnscope-run"
VERSION = 1


@dataclass(frozen=True)
class RunStack:
    """One stack of blocks, as surveys describe it: its name, how many blocks, how many heads a block has at most."""

    name: str
    layers: int
    heads: int
    causal: bool | None = None


@dataclass(frozen=True)
class RunHeader:
    """`settings` is plain data: every, probe or batch, thresholds, qk_clip, framework, and whatever else a watch was
    told. `resumed` are the steps after which the run went on from a checkpoint."""

    attnscope: str
    model: str
    fingerprint: str
    stacks: tuple[RunStack, ...]
    measures: dict[str, Card]
    settings: dict[str, Any] = field(default_factory=dict)
    created: str = ""
    resumed: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        said: dict[str, Any] = encode(self)
        return {**said, "settings": plain(self.settings)}

    @classmethod
    def from_json(cls, data: Any) -> RunHeader:
        """What `to_json` gave; a `FieldError` names what does not belong there."""
        read: RunHeader = decode(cls, data)
        for name, card in read.measures.items():
            if name != card.name or not card.parts:
                raise FieldError(f"measures['{name}'] is the card of something else")
        return read

    def write(self, folder: Path) -> None:
        text = json.dumps({"format": FORMAT, "version": VERSION, **self.to_json()}, indent=1, allow_nan=False)
        write_atomically(folder / HEADER, text.encode("utf-8", errors="replace"), make_folder=True)


def read_header(folder: Path) -> RunHeader:
    """The header of a run folder, or one sentence about what is wrong with it."""
    path = folder / HEADER
    data = read_document(path, "a run folder that `attnscope.watch` wrote")
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise RefusalError(f"{path} is not the header of a run: give a run folder that `attnscope.watch` wrote.")
    if data.get("version") != VERSION:
        raise RefusalError(
            f"{path} is a run of version {data.get('version')} and this attnscope reads version {VERSION}:"
            " use the attnscope that wrote it."
        )
    try:
        return RunHeader.from_json({name: value for name, value in data.items() if name not in ("format", "version")})
    except FieldError as error:
        raise RefusalError(f"{path} is damaged inside ({error}): begin a run in another folder.") from error


def fingerprint(class_name: str, parameters: Mapping[str, Sequence[int]] | Iterable[tuple[str, Sequence[int]]]) -> str:
    """A hash of a model's structure, `fingerprint("Llama", {name: tensor.shape ...})`; values do not count."""
    pairs = parameters.items() if isinstance(parameters, Mapping) else parameters
    structure = [class_name, sorted([name, [int(size) for size in shape]] for name, shape in pairs)]
    return hashlib.sha256(json.dumps(structure).encode()).hexdigest()
