"""What a watch was told, checked before anything runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, get_args

from attnscope.core.errors import RefusalError, nearest
from attnscope.core.finding import Severity
from attnscope.core.measure import Measure
from attnscope.core.registry import choose, refuse_unknown_measures
from attnscope.core.rooms import names
from attnscope.records.timeline.look import Alarm

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
