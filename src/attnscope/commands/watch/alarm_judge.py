"""Apply every alarm rule after every look, and decide which alarms begin, are renewed and end. Needs no torch.

    judge = AlarmJudge(thresholds)
    alarms = judge(look)

An alarm of a stack and site begins when its rule fires, and ends when the rule has not fired for two looks. An alarm
that becomes more severe ends and begins again. It is renewed (reported again with its current places) when it reaches a
new block, twice the heads that it named, or another threshold (logits that grew fast are now above their level). Each
block renews an alarm at most once.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from attnscope.commands.watch.look import ALARM_SEVERITIES, Alarm, AlarmSeverity, Look
from attnscope.commands.watch.rule import Firing, History, Rule, limits_of, rules
from attnscope.core.words import entering, listed, within

LOG = logging.getLogger("attnscope.watch")
RISEN = 1.2  # a loss this many times its lowest value is reported as risen
_QUIET = 2  # an alarm ends after this many looks at which its rule did not fire
_LEVELS = {"note": logging.INFO, "warning": logging.WARNING, "critical": logging.CRITICAL}


@dataclass
class _HeldAlarm:
    alarm: Alarm
    layers: set[int]  # blocks named so far
    heads: set[tuple[int, int]]
    thresholds: set[float]  # passed so far
    quiet: int = 0

    def renewed_by(self, now: Alarm) -> bool:
        """Return whether the alarm is to be renewed, and if so remember its places."""
        heads = self.heads.union(now.heads)
        new_blocks = not self.layers.issuperset(now.layers)
        twice_the_heads = len(heads) >= 2 * max(len(self.heads), 1)
        if not (new_blocks or twice_the_heads or now.threshold not in self.thresholds):
            return False
        self.layers |= set(now.layers)
        self.heads, self.alarm = heads, now
        self.thresholds.add(now.threshold)
        return True


class AlarmJudge:
    """Remembers the looks and the active alarms."""

    def __init__(self, thresholds: Mapping[str, float | int] | None = None) -> None:
        self.limits = limits_of(thresholds)
        self.history = History()
        self._held: dict[tuple[str, str, str], _HeldAlarm] = {}

    def __call__(self, look: Look, origin: str | None = None) -> tuple[Alarm, ...]:
        """Return the alarms that begin, are renewed or end at this look; `origin` says where NaN came from."""
        self.history.add(look)
        self.history.origin = origin
        alarms: list[Alarm] = []
        for name, rule in rules().items():
            firing = {
                (r.stack, r.site): r for r in rule(self.history, self.limits[name]) if r.where.any() or not r.where.size
            }
            for (stack, site), seen in firing.items():
                alarms += self._rings(rule, (name, stack, site), seen)
            for key, held in list(self._held.items()):
                if key[0] == name and key[1:] not in firing:
                    held.quiet += 1
                    if held.quiet >= _QUIET:
                        alarms.append(self._ends(key))
        return tuple(alarms)

    def _rings(self, rule: Rule, key: tuple[str, str, str], seen: Firing) -> list[Alarm]:
        severity = seen.severity or rule.severity
        held, ended = self._held.get(key), []
        if held is not None:
            held.quiet = 0
            if ALARM_SEVERITIES.index(severity) <= ALARM_SEVERITIES.index(held.alarm.severity):
                again = self._alarm(rule, seen, held.alarm.severity, held.alarm.since)
                return [again] if held.renewed_by(again) else []
            ended = [self._ends(key)]
        alarm = self._alarm(rule, seen, severity)
        self._held[key] = _HeldAlarm(alarm, set(alarm.layers), set(alarm.heads), {alarm.threshold})
        return [*ended, alarm]

    def _ends(self, key: tuple[str, str, str]) -> Alarm:
        alarm = self._held.pop(key).alarm
        sentence = f"Ended at step {self.history.step:,}: {alarm.sentence[0].lower()}{alarm.sentence[1:]}"
        return replace(alarm, step=self.history.step, ended=True, renewed=False, sentence=sentence)

    def _alarm(self, rule: Rule, seen: Firing, severity: AlarmSeverity, since: int | None = None) -> Alarm:
        """Build an alarm; `since` is the step at which a renewed alarm began."""
        step, where = self.history.step, seen.where
        layers = tuple(int(n) for n in np.flatnonzero(where if where.ndim == 1 else where.any(axis=1)))
        heads = tuple((int(a), int(b)) for a, b in np.argwhere(where)) if where.ndim == 2 else ()
        stacks = {values.stack for values in self.history.looks[-1].values}
        place = _place_words(layers, heads, seen)
        place += within(seen.stack, seen.site, len(stacks) > 1) if place else ""
        when = f"since step {step:,}" if since is None else f"at step {step:,}, and in part since step {since:,}"
        return Alarm(
            rule=rule.name,
            severity=severity,
            step=step,
            since=step if since is None else since,
            stack=seen.stack,
            site=seen.site,
            layers=layers,
            heads=heads,
            value=seen.value,
            threshold=seen.threshold,
            sentence=f"{seen.what}{place}, {when}; {seen.forecast}{self._loss_words()}.",
            advice=rule.advice,
            citation=rule.citation,
            renewed=since is not None,
        )

    def _loss_words(self) -> str:
        """Return a clause on the loss, in the past tense because alarms are read long after the run."""
        loss, lowest = self.history.loss, self.history.lowest
        if loss is None:
            return "the loss is unknown"
        if not math.isfinite(loss):
            return "the loss was not finite"
        if loss > RISEN * lowest:
            return f"the loss was {loss / lowest - 1:.0%} above its lowest"
        return "the loss was normal then"


def _place_words(layers: tuple[int, ...], heads: tuple[tuple[int, int], ...], seen: Firing) -> str:
    """Return ` in block 3, heads 1 and 4`, ` in blocks 0, 2 and 3 (9 heads)` or ` in all blocks`.

    For the stream, whose row b enters block b: ` entering block 2 and after the last`.
    """
    where = seen.where
    if not layers:
        return ""
    if seen.site == "stream":
        return f" {entering(layers, len(where) - 1)}"
    if len(layers) == 1:
        own = [head for _, head in heads]
        named = "" if not own else f", head{'s' if len(own) > 1 else ''} {listed(own)}"
        return f" in block {layers[0]}" + (", all heads" if own and len(own) == where.shape[1] > 1 else named)
    known = " in all blocks" if len(layers) == len(where) else f" in blocks {listed(layers)}"
    return known + (f" ({len(heads)} heads)" if heads else "")


def log_alarm(alarm: Alarm, on_alarm: Callable[[Alarm], None] | None) -> None:
    """Write an alarm to Python's log and call `on_alarm`, whose errors are logged and ignored."""
    said = (alarm.compared, alarm.sentence, alarm.advice)
    LOG.log(logging.INFO if alarm.ended else _LEVELS[alarm.severity], "%s. %s %s", *said)
    if on_alarm is not None:
        try:
            on_alarm(alarm)
        except Exception:
            LOG.exception("on_alarm failed; the training goes on.")


@contextmanager
def muted_log() -> Iterator[None]:
    """Record alarms without logging them, for runs that are meant to fail."""
    before, LOG.disabled = LOG.disabled, True
    try:
        yield
    finally:
        LOG.disabled = before
