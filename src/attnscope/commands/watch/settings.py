"""The settings of a watch, checked before anything runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypedDict, get_args

from attnscope.commands.watch.look import Alarm, AlarmSeverity
from attnscope.commands.watch.writers import Writer
from attnscope.core.card import names
from attnscope.core.errors import RefusalError, nearest
from attnscope.core.measure import Measure
from attnscope.core.registry import choose, refuse_unknown_measures

# Measures that are cheap at every step, or that an alarm rule reads.
DEFAULT = (
    *("entropy", "max_logit", "sink_mass", "inactive_heads", "head_contribution", "value_drain", "gate_mean"),
    *("spike", "relative_residual", "gradient_norm", "update_ratio"),
)
ROWS = 2  # sequences of a batch in a look
_WHOLE_NUMBERS = {
    "every": (1, "A look every {} steps is not possible: give a whole number, every=1 or more."),
    "rows": (1, "A look at {} sequences is not possible: give a whole number, rows=1 or more, or None for all."),
    "resume_from": (0, "A run cannot resume from step {}: give a whole number, resume_from=0 or more."),
}


class WatchOptions(TypedDict, total=False):
    """The keyword arguments that `attnscope.watch` and its framework callbacks share."""

    every: int
    rows: int | None
    measures: str | Iterable[str]
    thresholds: Mapping[str, float | int] | None
    stop_on: AlarmSeverity | None
    qk_clip: float | int | None
    on_alarm: Callable[[Alarm], None] | None
    name: str | None
    resume_from: int | None
    writers: str | Iterable[str | Writer]


@dataclass(frozen=True)
class WatchSettings:
    """See `attnscope.watch` for the meaning of each field; `framework` is named in the record."""

    every: int = 50
    rows: int | None = ROWS
    measures: str | Iterable[str] = "default"
    thresholds: Mapping[str, float | int] | None = None
    stop_on: AlarmSeverity | None = None
    qk_clip: float | int | None = None
    on_alarm: Callable[[Alarm], None] | None = None
    name: str | None = None
    resume_from: int | None = None
    writers: str | Iterable[str | Writer] = ()
    framework: str = "a loop of its own"

    def __post_init__(self) -> None:
        _refuse_unusable_numbers(vars(self))
        if self.stop_on is not None and self.stop_on not in get_args(AlarmSeverity):
            raise RefusalError(f"There is no severity '{self.stop_on}': give stop_on='warning' or stop_on='critical'.")
        if self.on_alarm is not None and not callable(self.on_alarm):
            raise RefusalError("on_alarm is called with every alarm: give a function of one argument.")

    @classmethod
    def of(cls, options: Mapping[str, Any], framework: str) -> WatchSettings:
        """Build settings from keyword arguments; refuse an unknown name."""
        known = [one.name for one in fields(cls)]
        for name in options:
            if name not in known:
                raise RefusalError(f"A watch has no setting '{name}'.{nearest(name, known)}")
        _refuse_unusable_numbers(options)
        return cls(**{"framework": framework, **options})

    def measure_words(self) -> list[str]:
        words = self.measures.split(",") if isinstance(self.measures, str) else list(self.measures)
        return [word.strip() for word in words if word.strip()]

    def chosen_measures(self) -> tuple[Measure, ...]:
        words = self.measure_words()
        refuse_unknown_measures(words)
        known = set(names("attnscope.measures"))
        expanded = [name for word in words for name in (DEFAULT if word == "default" else (word,)) if name in known]
        return choose(expanded or words, training=True)

    def gradient_measures(self) -> tuple[str, ...]:
        """Return the measures of gradients that the caller named."""
        words = self.measure_words()
        return tuple(m.card.name for m in self.chosen_measures() if "gradient" in m.reads and m.card.name in words)

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


def _refuse_unusable_numbers(options: Mapping[str, Any]) -> None:
    for name, (least, sentence) in _WHOLE_NUMBERS.items():
        value = options.get(name, least)
        allowed = value is None and name != "every"
        if not allowed and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise RefusalError(sentence.format(value))
    clip = options.get("qk_clip")
    if isinstance(clip, bool) or not (clip is None or (isinstance(clip, int | float) and 0 < clip < math.inf)):
        raise RefusalError(f"qk_clip={clip} cannot limit logits: give a number above 0, such as 100.")
