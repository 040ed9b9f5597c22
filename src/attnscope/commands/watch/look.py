"""Looks (step, loss, values, alarms), which are the lines of looks.jsonl, and the header of a run, run.json.

    {"step": 50, "loss": 3.21, "seconds": 12.4, "tokens": 102400, "cost": 0.031,
     "values": [{"measure": "entropy", "part": "value", "stack": "model", "site": "self", "heads": [[2.1, ...], ...]}],
     "alarms": [], "crc32": "0a1b2c3d"}

Numbers are rounded to six figures, the precision of float32, and are null if not finite. A measure of the stream has
`layers` [blocks], one of heads has `heads` [blocks, heads]; row b is block b as in surveys, padded with null if
the block has fewer heads than others.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from attnscope.commands.watch.training_state import TrainingState
from attnscope.commands.watch.values import Values, short
from attnscope.core.card import Card
from attnscope.core.decoding import FieldError, decode, encode, plain
from attnscope.core.errors import RefusalError
from attnscope.core.files import read_document, write_atomically
from attnscope.core.hashes import checked_line, hashed, refuse_damaged
from attnscope.core.ranges import INFINITE, NAN, AtMost, Count, Finite, Index, Size
from attnscope.core.words import listed, numeral

HEADER = "run.json"
FORMAT = "attnscope-run"
VERSION = 1
AlarmSeverity = Literal["note", "warning", "critical"]
ALARM_SEVERITIES: tuple[AlarmSeverity, ...] = get_args(AlarmSeverity)


@dataclass(frozen=True)
class RunStack:
    """One stack of blocks: its name, the number of blocks, the largest number of heads in a block."""

    name: str
    layers: Count
    heads: Count
    causal: bool | None = None


@dataclass(frozen=True)
class RunHeader:
    """The content of run.json. A run is resumed only with a model of the same `fingerprint`.

    `settings` is the JSON form of the watch's settings. `resumed` holds the steps after which the run was resumed.
    """

    attnscope: str
    model: str
    fingerprint: str
    stacks: tuple[RunStack, ...]
    measures: dict[str, Card]
    settings: dict[str, Any] = field(default_factory=dict)
    created: str = ""
    resumed: tuple[Count, ...] = ()

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = encode(self)
        return {**document, "settings": plain(self.settings)}

    @classmethod
    def from_json(cls, data: Any) -> RunHeader:
        """Invert `to_json`; raise `FieldError` with the name of a bad field."""
        header: RunHeader = decode(cls, data)
        for name, card in header.measures.items():
            if name != card.name or not card.parts:
                raise FieldError(f"measures['{name}'] is the card of something else")
        return header

    def write(self, folder: Path) -> None:
        document = hashed({"format": FORMAT, "version": VERSION, **self.to_json()})
        text = json.dumps(document, indent=1, allow_nan=False)
        write_atomically(folder / HEADER, text.encode("utf-8", errors="replace"), make_folder=True)


def read_header(folder: Path) -> RunHeader:
    """Read the header of a run folder; refuse one that is missing, damaged or of another version."""
    path = folder / HEADER
    data = read_document(path, "a run folder that `attnscope.watch` wrote")
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise RefusalError(f"{path} is not the header of a run: give a run folder that `attnscope.watch` wrote.")
    if data.get("version") != VERSION:
        raise RefusalError(
            f"{path} is a run of version {data.get('version')!s:.40} and this attnscope reads version {VERSION}:"
            " use the attnscope that wrote it."
        )
    data = refuse_damaged(data, path, "begin a run in another folder")
    try:
        return RunHeader.from_json({name: value for name, value in data.items() if name not in ("format", "version")})
    except FieldError as error:
        raise RefusalError(f"{path} is damaged ({error!s:.200}): begin a run in another folder.") from error


def fingerprint(class_name: str, parameters: Mapping[str, Sequence[int]] | Iterable[tuple[str, Sequence[int]]]) -> str:
    """Hash the structure of a model: its class and the names and shapes of its parameters, not their values."""
    pairs = parameters.items() if isinstance(parameters, Mapping) else parameters
    structure = [class_name, sorted([name, [int(size) for size in shape]] for name, shape in pairs)]
    return hashlib.sha256(json.dumps(structure).encode()).hexdigest()


@dataclass(frozen=True)
class Alarm:
    """An alarm that began, was `renewed` (more places, another threshold), or `ended` at a look.

    It has been active `since` a step. `layers` and `heads` (pairs of block and head) say where; `value` crossed
    `threshold`.
    """

    rule: str
    severity: AlarmSeverity
    step: Count
    since: Annotated[Count, AtMost("step")]
    stack: str
    site: str
    layers: tuple[Index, ...]
    heads: tuple[tuple[Index, Index], ...]
    value: Annotated[Finite, NAN, INFINITE]  # not finite if the loss or a measure was not
    threshold: Annotated[Finite, NAN, INFINITE]
    sentence: str
    advice: str = ""
    citation: str = ""
    ended: bool = False
    renewed: bool = False

    @property
    def key(self) -> tuple[str, str, str, int]:
        """The identity that an alarm, its renewals and its end share."""
        return (self.rule, self.stack, self.site, self.since)

    @property
    def compared(self) -> str:
        """Return the rule and its comparison: `max_logit_growth: 240 > 100 (block 2, head 5)`."""
        relation = ">" if self.value > self.threshold else "<" if self.value < self.threshold else "="
        blocks = [str(layer) for layer in self.layers]
        places = [f"{'block' if len(blocks) == 1 else 'blocks'} {listed(blocks)}"] if blocks else []
        if self.site == "stream":
            places = [f"{place.replace('block', 'position')} of the stream" for place in places]
        if len(self.heads) == 1:
            places.append(f"head {self.heads[0][1]}")
        elif self.heads:
            places.append(f"{len(self.heads)} heads")
        words = f"{self.rule}: {numeral(self.value, 3)} {relation} {numeral(self.threshold, 3)}"
        return f"{words} ({', '.join(places)})" if places else words

    def at_least(self, severity: AlarmSeverity) -> bool:
        return ALARM_SEVERITIES.index(self.severity) >= ALARM_SEVERITIES.index(severity)


@dataclass(frozen=True, eq=False)
class Look:
    """One look. `seconds` and `tokens` count from the start of the run, across resumptions; `cost` is its own seconds.

    `loss` is None if it is unknown or not finite (then there is an alarm). `training` is None in files of earlier
    versions.
    """

    step: int
    loss: float | None
    seconds: float
    tokens: int
    cost: float
    values: tuple[Values, ...] = ()
    alarms: tuple[Alarm, ...] = ()
    training: TrainingState | None = None

    def find(
        self, measure: str, part: str = "value", stack: str | None = None, site: str | None = None
    ) -> Values | None:
        """Return the first `Values` that fit, or None; a stack or site of None fits all."""
        wanted = (measure, part, stack, site)
        fits = (v for v in self.values if all(w in (None, k) for w, k in zip(wanted, v.key, strict=True)))
        return next(fits, None)

    def to_json(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "loss": None if self.loss is None or not math.isfinite(self.loss) else short(self.loss),
            "seconds": round(self.seconds, 3),
            "tokens": self.tokens,
            "cost": short(self.cost),
            "values": [values.to_json() for values in self.values],
            "alarms": encode(self.alarms),
            **({} if self.training is None else {"training": self.training.to_json()}),
        }

    @classmethod
    def from_json(cls, data: Any) -> Look:
        """Invert `to_json`; raise `FieldError` with the name of a bad field."""
        if not isinstance(data, Mapping) or not isinstance(data.get("values"), list):
            raise FieldError("values: a list is needed")
        try:
            values = tuple(Values.from_json(entry) for entry in data["values"])
        except FieldError as error:
            raise FieldError(f"values: {error}") from error
        fields = {name: _renamed(v) if name == "alarms" else v for name, v in data.items() if name != "values"}
        rest: _Rest = decode(_Rest, fields)
        return cls(rest.step, rest.loss, rest.seconds, rest.tokens, rest.cost, values, rest.alarms, rest.training)

    def line(self) -> bytes:
        """Return the line of looks.jsonl, with its checksum and line end."""
        text = json.dumps(self.to_json(), separators=(",", ":"), allow_nan=False, ensure_ascii=False)
        return checked_line(text.encode("utf-8", errors="replace"))


def _renamed(alarms: Any) -> Any:
    """Return the alarms with the severity `note`, which earlier files call `info`."""
    if not isinstance(alarms, list):
        return alarms
    return [{**a, "severity": "note"} if isinstance(a, Mapping) and a.get("severity") == "info" else a for a in alarms]


@dataclass(frozen=True)
class _Rest:
    """A look without its values, which are too many to decode one by one."""

    step: Count
    loss: Finite | None
    seconds: Size
    tokens: Count
    cost: Size
    alarms: tuple[Alarm, ...]
    training: TrainingState | None = None
