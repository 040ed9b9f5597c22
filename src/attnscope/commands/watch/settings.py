"""What a watch was told, checked before anything runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from attnscope.commands.watch.look import Alarm, Values
from attnscope.core.card import names
from attnscope.core.errors import RefusalError, nearest
from attnscope.core.finding import Severity
from attnscope.core.measure import Measure
from attnscope.core.registry import choose, refuse_unknown_measures

# What can be said of every step at little cost, and what the rules read.
DEFAULT = (
    *("entropy", "max_logit", "sink_mass", "inactive_heads", "head_contribution", "value_drain", "gate_mean"),
    *("spike", "relative_residual", "gradient_norm", "update_ratio"),
)
ROWS = 2  # sequences of a batch that are looked at

_WANTED = {
    "every": "A look every {} steps is none: give every=1 or more, a whole number.",
    "rows": "A look at {} sequences sees nothing: give rows=1 or more, a whole number, or None for all.",
    "resume_from": "No run was at step {}: give resume_from=0 or more, a whole number.",
    "qk_clip": "qk_clip={} holds no logits down: give a number above 0, such as 100.",
}
_LEAST = {"every": 1, "rows": 1, "resume_from": 0}
_NOTHING = type(None)
_KINDS = {"every": (int,), "rows": (int, _NOTHING), "resume_from": (int, _NOTHING), "qk_clip": (int, float, _NOTHING)}


@dataclass(frozen=True)
class Settings:
    """`every` so many steps a look, at `rows` sequences of the batch (None: all) or at a `probe`.

    `measures` are names and sets of `scan`; "default" is what the rules read and what costs little. `stop_on` is the
    severity from which on an alarm ends the training; `qk_clip` the largest logit that heads may have.
    """

    every: int = 50
    rows: int | None = ROWS
    measures: str | Iterable[str] = "default"
    thresholds: Mapping[str, float | int] = field(default_factory=dict)
    stop_on: Severity | None = None
    qk_clip: float | int | None = None
    on_alarm: Callable[[Alarm], None] | None = None
    name: str | None = None
    resume_from: int | None = None
    writers: str | Iterable[Any] = ()  # tensorboard, wandb, trackio, or writers of your own
    framework: str = "a loop of its own"

    def __post_init__(self) -> None:
        for word, least in _LEAST.items():
            value = getattr(self, word)
            if value is not None and not value >= least:
                raise RefusalError(_WANTED[word].format(value))
        if self.qk_clip is not None and not 0 < self.qk_clip < math.inf:
            raise RefusalError(_WANTED["qk_clip"].format(self.qk_clip))
        if self.stop_on is not None and self.stop_on not in get_args(Severity):
            raise RefusalError(f"There is no severity '{self.stop_on}': give stop_on='warning' or stop_on='critical'.")
        if self.on_alarm is not None and not callable(self.on_alarm):
            raise RefusalError("on_alarm is called with every alarm: give a function of one argument.")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Settings:
        """From the words of a call."""
        known = [one.name for one in fields(cls)]
        for word in given:
            if word not in known:
                raise RefusalError(f"A watch has no setting '{word}'.{nearest(word, known)}")
        for word, kinds in _KINDS.items():
            if word in given and (isinstance(given[word], bool) or not isinstance(given[word], kinds)):
                raise RefusalError(_WANTED[word].format(given[word]))
        return cls(**given)

    def words(self) -> list[str]:
        given = self.measures.split(",") if isinstance(self.measures, str) else list(self.measures)
        return [word.strip() for word in given if word.strip()]

    def chosen(self) -> tuple[Measure, ...]:
        words = self.words()
        refuse_unknown_measures(words)
        there = set(names("attnscope.measures"))
        own = [word for one in words for word in (DEFAULT if one == "default" else (one,)) if word in there]
        return choose(own or words, training=True)

    def needs_gradients(self) -> tuple[str, ...]:
        """Measures of gradients that were asked for by name: without gradients they are refused."""
        return tuple(m.card.name for m in self.chosen() if "gradient" in m.reads and m.card.name in self.words())

    def to_json(self, limits: Mapping[str, Mapping[str, float]], looked_at: str) -> dict[str, Any]:
        return {
            "every": self.every,
            "looks_at": looked_at,
            "mode": "evaluation, without gradients, after the step",
            "rows": self.rows,
            "thresholds": {name: dict(own) for name, own in limits.items()},
            "stop_on": self.stop_on,
            "qk_clip": self.qk_clip,
            "framework": self.framework,
        }


# The page of one look: what measures said of every sequence, summed so that pages of several processes add up.
#
# The number of a place is the mean over sequences; of what is dangerous where it is largest (a logit, a spike) it is
# the largest. Both of a whole batch follow from those of its parts, whichever process had them.

LARGEST = ("max_logit", "spike")  # of these the largest over sequences counts, not the mean
Array = NDArray[np.float64]
Place = tuple[str, str, str, str, int]  # measure, part, stack, site, layer


@dataclass(frozen=True)
class Entry:
    """Of one place: the sum over sequences, how many they were, and the largest of them; `[]` or `[head]`."""

    total: Array
    count: int
    largest: Array

    @classmethod
    def of(cls, values: Array) -> Entry:
        return cls(np.asarray(values.sum(axis=0)), len(values), np.asarray(values.max(axis=0)))

    def merge(self, other: Entry) -> Entry:
        total, largest = self.total + other.total, np.maximum(self.largest, other.largest)
        return Entry(np.asarray(total), self.count + other.count, np.asarray(largest))


@dataclass
class Page:
    """Written by an `Observer`. `tokens` are those of the batch that the loop trained on."""

    entries: dict[Place, Entry] = field(default_factory=dict)
    tokens: int = 0

    def observe(
        self,
        measure: str,
        part: str,
        stack: str,
        site: str,
        layer: int,
        values: np.ndarray,
        where: Mapping[str, np.ndarray] | None = None,  # noqa: ARG002  # a look keeps numbers, not places
        samples: np.ndarray | None = None,  # noqa: ARG002
    ) -> None:
        place = (measure, part, stack, site, layer)
        entry, before = Entry.of(values), self.entries.get(place)
        self.entries[place] = entry if before is None else before.merge(entry)

    def values(self) -> tuple[Values, ...]:
        """One array for each measure, part, stack and site: row l is layer l, NaN where nothing is known."""
        columns: dict[tuple[str, str, str, str], dict[int, Array]] = {}
        for (*key, layer), entry in self.entries.items():
            number = entry.largest if key[0] in LARGEST else entry.total / max(entry.count, 1)
            columns.setdefault((key[0], key[1], key[2], key[3]), {})[layer] = np.asarray(number)
        return tuple(Values.of(*key, _stacked(rows)) for key, rows in columns.items())


def merged(pages: Iterable[Page]) -> Page:
    """The page of a whole batch. Numbers of training (gradients, updates) are the same in every process."""
    whole = Page()
    for page in pages:
        for place, entry in page.entries.items():
            before = whole.entries.get(place)
            whole.entries[place] = entry if before is None else before.merge(entry)
        whole = replace(whole, tokens=whole.tokens + page.tokens)
    return whole


def _stacked(rows: Mapping[int, Array]) -> Array:
    width = max(row.size for row in rows.values()) if any(row.ndim for row in rows.values()) else 0
    table = np.full((max(rows) + 1, width) if width else (max(rows) + 1,), np.nan)
    for layer, row in rows.items():
        if width:
            table[layer, : row.size] = row
        else:
            table[layer] = row
    return table
