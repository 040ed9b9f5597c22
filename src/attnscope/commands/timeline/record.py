"""The record of `timeline`: the header of a run and its looks.

    timeline = attnscope.timeline("run/"); timeline.steps, timeline.losses
    timeline.series("entropy")          numbers [looks, blocks, heads], NaN if missing
    timeline.alarms                     every alarm, with the step at which it ended
    timeline.chart("entropy"); timeline.table(); timeline.save("timeline.json"); attnscope.report(timeline, "page.html")

Further runs (`attnscope.timeline("a/", "b/")`) are in `beside`, and are drawn with the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from attnscope.commands.watch.look import Alarm, Look, RunHeader
from attnscope.core.decoding import FieldError, decode
from attnscope.core.errors import RefusalError, nearest
from attnscope.core.ranges import HUGE
from attnscope.core.words import clean, count
from attnscope.reports.record import BESIDE, Record

if TYPE_CHECKING:
    import pandas

Key = tuple[str, str, str, str]
"""Measure, part, stack, site."""


def check_look(header: RunHeader, look: Look) -> None:
    """Raise `FieldError` for numbers outside the range on the card, or of blocks and heads that the model lacks."""
    stacks = {stack.name: stack for stack in header.stacks}
    for values in look.values:
        name, stack = f"values['{values.measure}']", stacks.get(values.stack)
        blocks, *heads = values.numbers.shape
        if stack is not None and (blocks > stack.layers + 1 or (heads and heads[0] > max(stack.heads, 1))):
            raise FieldError(f"{name}: at most {stack.layers} blocks of {stack.heads} heads are needed")
        card = header.measures.get(values.measure)
        if card is not None:
            low, high = np.clip(card.limits(look.tokens), -HUGE, HUGE)
            if not (np.isnan(values.numbers) | ((values.numbers >= low) & (values.numbers <= high))).all():
                raise FieldError(f"{name}: numbers from {card.low:g} to {card.high:g} are needed")
    for number, alarm in enumerate(look.alarms):
        stack = stacks.get(alarm.stack)
        pairs = [*alarm.heads, *((layer, 0) for layer in alarm.layers)]
        if stack is not None and any(b > stack.layers or h > stack.heads for b, h in pairs):
            raise FieldError(f"alarms[{number}]: blocks and heads of the model are needed")


@dataclass(frozen=True)
class Spell:
    """One alarm, its renewals, and the step at which it ended (None while it is active)."""

    alarm: Alarm
    ended: int | None
    renewals: tuple[Alarm, ...] = ()

    @property
    def told(self) -> tuple[Alarm, ...]:
        return (self.alarm, *self.renewals)

    @property
    def sentence(self) -> str:
        """The comparison and sentence of the alarm, followed by those of its last renewal."""
        return " ".join(f"{one.compared}. {one.sentence}" for one in (self.alarm, *self.renewals[-1:]))


@dataclass(frozen=True, repr=False, eq=False)
class Timeline(Record):
    """One run, with the name of its folder. `notes` say what could not be read, or how the run was made."""

    KIND: ClassVar[str] = "timeline"
    COMMAND: ClassVar[str] = "timeline"
    FILE: ClassVar[str] = "timeline.json"
    INDENT: ClassVar[int | None] = None

    name: str
    header: RunHeader
    looks: tuple[Look, ...]
    notes: tuple[str, ...] = ()
    beside: tuple[Timeline, ...] = ()

    @property
    def runs(self) -> tuple[Timeline, ...]:
        """This run and the runs compared with it."""
        return (self, *self.beside)

    @property
    def steps(self) -> NDArray[np.int64]:
        return np.array([look.step for look in self.looks], dtype=np.int64)

    @property
    def losses(self) -> NDArray[np.float64]:
        """The loss of every look, NaN if unknown."""
        return np.array([np.nan if look.loss is None else look.loss for look in self.looks], dtype=np.float64)

    def training(self, name: str) -> NDArray[np.float64]:
        """Return a field of `TrainingState` at every look, such as "learning_rate"; NaN if unknown."""
        found = [None if look.training is None else getattr(look.training, name) for look in self.looks]
        return np.array([np.nan if value is None else value for value in found], dtype=np.float64)

    @property
    def mean_losses(self) -> NDArray[np.float64]:
        """The mean loss since the look before if it is known, else the loss of the look."""
        means = self.training("mean_loss")
        return means if np.isfinite(means).any() else self.losses

    @property
    def keys(self) -> tuple[Key, ...]:
        """All measured places, in the order of the header and of the cards."""
        seen = self._found.keys()
        stacks = {stack.name: n for n, stack in enumerate(self.header.stacks)}
        names = {name: n for n, name in enumerate(self.header.measures)}

        def place(key: Key) -> tuple[Any, ...]:
            card = self.header.measures.get(key[0])
            parts, sites = (card.parts, card.sites) if card else ((), ())
            return (
                stacks.get(key[2], len(stacks)),
                names.get(key[0], len(names)),
                parts.index(key[1]) if key[1] in parts else len(parts),
                sites.index(key[3]) if key[3] in sites else len(sites),
                key,
            )

        return tuple(sorted(seen, key=place))

    def series(
        self, measure: str, part: str = "value", stack: str | None = None, site: str | None = None
    ) -> NDArray[np.float64]:
        """Return [looks, blocks] or [looks, blocks, heads], NaN if missing.

        `stack` and `site` default to the first place with this measure; `part` to the card's first if it has no
        "value".
        """
        return self.numbers(self.key(measure, part, stack, site))

    def key(self, measure: str, part: str = "value", stack: str | None = None, site: str | None = None) -> Key:
        """Return the key of a measure, part, stack and site; refuse an unknown one."""
        known = [key for key in self.keys if key[0] == measure]
        if not known:
            raise RefusalError(f"This run has no measure '{measure}'.{nearest(measure, [key[0] for key in self.keys])}")
        parts = list(dict.fromkeys(key[1] for key in known))
        part = parts[0] if part == "value" and part not in parts else part
        fits = [key for key in known if key[1] == part and stack in (None, key[2]) and site in (None, key[3])]
        if not fits:
            there = ", ".join(" ".join(key[1:]) for key in known)
            raise RefusalError(f"'{measure}' was not measured there: its parts, stacks and sites are {there}.")
        return fits[0]

    def numbers(self, key: Key) -> NDArray[np.float64]:
        """Return the numbers of one key at all looks, padded with NaN."""
        found = self._found.get(key, [None] * len(self.looks))
        axes = max((one.ndim for one in found if one is not None), default=1)
        shapes = [one.shape for one in found if one is not None and one.ndim == axes]
        size = tuple(max(shape[axis] for shape in shapes) for axis in range(axes)) if shapes else (0,) * axes
        made = np.full((len(found), *size), np.nan)
        for row, one in zip(made, found, strict=True):
            if one is not None and one.ndim == axes:
                row[tuple(slice(0, extent) for extent in one.shape)] = one
        return made

    @cached_property
    def _found(self) -> dict[Key, list[NDArray[np.float64] | None]]:
        """The numbers of every look by key, collected in one pass."""
        found: dict[Key, list[NDArray[np.float64] | None]] = {}
        for number, look in enumerate(self.looks):
            for one in look.values:
                found.setdefault(one.key, [None] * len(self.looks))[number] = one.numbers
        return found

    @property
    def alarms(self) -> tuple[Spell, ...]:
        """Alarms in the order in which they began, each with its end."""
        told = [alarm for look in self.looks for alarm in look.alarms]
        ends = {alarm.key: alarm.step for alarm in told if alarm.ended}
        again: dict[Any, list[Alarm]] = {}
        for alarm in told:
            if alarm.renewed:
                again.setdefault(alarm.key, []).append(alarm)
        began = [alarm for alarm in told if not alarm.ended and not alarm.renewed]
        return tuple(Spell(alarm, ends.get(alarm.key), tuple(again.get(alarm.key, ()))) for alarm in began)

    @property
    def tokens_a_second(self) -> NDArray[np.float64]:
        """Tokens per second since the previous look, NaN if no time passed."""
        seconds = np.array([0.0, *(look.seconds for look in self.looks)])
        tokens = np.array([0.0, *(float(look.tokens) for look in self.looks)])
        passed, seen = np.diff(seconds), np.diff(tokens)
        return np.where((passed > 0) & (seen >= 0), seen / np.where(passed > 0, passed, 1.0), np.nan)

    def to_json(self) -> dict[str, Any]:
        return {
            "format": f"attnscope-{self.KIND}",
            "version": self.VERSION,
            "name": self.name,
            "header": self.header.to_json(),
            "looks": [look.to_json() for look in self.looks],
            "notes": list(self.notes),
            "beside": [{k: v for k, v in one.to_json().items() if k not in BESIDE} for one in self.beside],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Timeline:
        """Invert `to_json`; raise `FieldError` with the name of a bad field."""
        unknown = [name for name in data if name not in (*BESIDE, "name", "header", "looks", "notes", "beside")]
        if unknown:
            raise FieldError(f"unknown fields in Timeline: {', '.join(unknown)}")
        for name in ("looks", "beside"):
            if not isinstance(data.get(name), list):
                raise FieldError(f"{name}: a list is needed")
        header = RunHeader.from_json(data.get("header"))
        looks: list[Look] = []
        for number, item in enumerate(data["looks"]):
            try:
                look = Look.from_json(item)
                check_look(header, look)
            except FieldError as error:
                raise FieldError(f"looks[{number}].{error}") from error
            if looks and look.step <= looks[-1].step:
                raise FieldError(f"looks[{number}].step: steps must rise")
            looks.append(look)
        return cls(
            decode(str, data.get("name")),
            header,
            tuple(looks),
            decode(tuple[str, ...], data.get("notes")),
            tuple(cls._beside(item, number) for number, item in enumerate(data["beside"])),
        )

    @classmethod
    def _beside(cls, data: Any, number: int) -> Timeline:
        if not isinstance(data, Mapping) or data.get("beside"):
            raise FieldError(f"beside[{number}]: the run must not have runs beside it")
        try:
            return cls.from_json(data)
        except FieldError as error:
            raise FieldError(f"beside[{number}].{error}") from error

    def table(self) -> pandas.DataFrame:
        """Return a row for each look, measure, place and head; `head` is <NA> if there is one number per block."""
        from attnscope.commands.timeline.read import table

        return table(self)

    def __repr__(self) -> str:
        last = f" to step {self.looks[-1].step:,}" if self.looks else ""
        beside = f", beside {count(len(self.beside), 'other run')}" if self.beside else ""
        looks, alarms = count(len(self.looks), "look"), count(len(self.alarms), "alarm")
        return f"<Timeline of {clean(self.name[:40])}: {looks}{last}, {alarms}{beside}>"
