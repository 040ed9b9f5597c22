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

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnscope.core.card import Card
from attnscope.core.decoding import FieldError, decode, encode, plain
from attnscope.core.errors import RefusalError
from attnscope.core.files import read_document, write_atomically
from attnscope.core.hashes import checked_line, hashed, refuse_damaged
from attnscope.core.ranges import INFINITE, NAN, AtMost, Count, Finite, Index, Size

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


FIGURES = 6
_DEEPEST = 10**5
_NUMBERS = {float, int, type(None)}


@dataclass(frozen=True, eq=False)
class Values:
    """One measure in one stack and site: `numbers` is [blocks] or [blocks, heads], NaN where not finite or missing."""

    measure: str
    part: str
    stack: str
    site: str
    numbers: NDArray[np.float64]

    @classmethod
    def of(cls, measure: str, part: str, stack: str, site: str, numbers: ArrayLike) -> Values:
        """Return `Values` from anything that numpy reads as numbers; None and infinities become NaN."""
        array = np.array(numbers, dtype=np.float64)
        if array.ndim not in (1, 2):
            raise ValueError(f"{measure} must be [blocks] or [blocks, heads], not have {array.ndim} axes")
        return cls(measure, part, stack, site, np.where(np.isfinite(array), array, np.nan))

    @property
    def key(self) -> tuple[str, str, str, str]:
        return (self.measure, self.part, self.stack, self.site)

    @property
    def layers(self) -> list[float | None] | None:
        """Return numbers [blocks], or None if there is one for each head."""
        return None if self.numbers.ndim == 2 else _plain(self.numbers)

    @property
    def heads(self) -> list[list[float | None]] | None:
        """Return numbers [blocks, heads], or None if there is one for each block."""
        return _plain(self.numbers) if self.numbers.ndim == 2 else None

    def to_json(self) -> dict[str, Any]:
        numbers = {"layers": self.layers} if self.numbers.ndim == 1 else {"heads": self.heads}
        return {"measure": self.measure, "part": self.part, "stack": self.stack, "site": self.site, **numbers}

    @classmethod
    def from_json(cls, data: Any) -> Values:
        if not isinstance(data, Mapping):
            raise FieldError("an object with named fields is needed")
        measure, part, stack, site = (data.get(name) for name in ("measure", "part", "stack", "site"))
        if not all(isinstance(word, str) for word in (measure, part, stack, site)) or len(data) != 5:
            raise FieldError("measure, part, stack, site and either layers or heads are needed")
        flat = "layers" in data
        rows: Any = [data["layers"]] if flat else data.get("heads")
        if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows) or len(rows) > _DEEPEST:
            raise FieldError("lists of numbers are needed")
        if len({len(row) for row in rows}) > 1 or any(set(map(type, row)) - _NUMBERS for row in rows):
            raise FieldError("lists of numbers or null, equally long, are needed")
        try:
            numbers = np.array(rows[0] if flat else rows, dtype=np.float64)
        except (OverflowError, ValueError) as error:
            raise FieldError("numbers that a float can hold are needed") from error
        return cls(measure, part, stack, site, numbers if flat or rows else numbers.reshape(0, 0))  # type: ignore[arg-type]


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

    def at_least(self, severity: AlarmSeverity) -> bool:
        return ALARM_SEVERITIES.index(self.severity) >= ALARM_SEVERITIES.index(severity)


@dataclass(frozen=True, eq=False)
class Look:
    """One look. `seconds` and `tokens` count from the start of the run, across resumptions; `cost` is its own seconds.

    `loss` is None if it is unknown or not finite (then there is an alarm).
    """

    step: int
    loss: float | None
    seconds: float
    tokens: int
    cost: float
    values: tuple[Values, ...] = ()
    alarms: tuple[Alarm, ...] = ()

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
            "loss": None if self.loss is None or not math.isfinite(self.loss) else _short(self.loss),
            "seconds": round(self.seconds, 3),
            "tokens": self.tokens,
            "cost": _short(self.cost),
            "values": [values.to_json() for values in self.values],
            "alarms": encode(self.alarms),
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
        return cls(rest.step, rest.loss, rest.seconds, rest.tokens, rest.cost, values, rest.alarms)

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


def _plain(numbers: NDArray[np.float64]) -> list[Any]:
    """Return numbers with six significant digits, None if not finite. Vectorised, because a look has thousands of them.

    Computes round(x / 10^e) 10^e, with e the exponent of the sixth figure. For negative e it divides by 10^-e, which is
    exact in float64 up to 10^22, so the quotient is the float nearest to the decimal and prints with six figures.
    Powers are limited to 10^300: numbers below 1e-295 keep fewer figures, and float32 ends at 1e-45.
    """
    finite = np.isfinite(numbers)
    known = np.where(finite, numbers, 0.0)
    size = np.abs(known)
    power = np.floor(np.log10(np.where(size > 0, size, 1.0))) - (FIGURES - 1)
    up, down = 10.0 ** np.maximum(power, 0), 10.0 ** np.minimum(-np.minimum(power, 0), 300)
    rows: list[Any] = (np.round(known * down / up) * up / down).tolist()
    return rows if finite.all() else _with_null(rows, finite.tolist())


def _with_null(rows: list[Any], finite: list[Any]) -> list[Any]:
    return [
        _with_null(row, known) if isinstance(row, list) else row if known else None
        for row, known in zip(rows, finite, strict=True)
    ]


def _short(number: float) -> float:
    return float(f"{number:.{FIGURES}g}")
