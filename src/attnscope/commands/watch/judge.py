"""The judge asks every rule after every look, and says which alarms begin and which end. Needs no torch.

    judge = Judge(thresholds)
    alarms = judge(look)                # those that began, were renewed or ended at this look

An alarm holds from the look at which its rule first rings in a stack and site, until it has been quiet for two looks.
One that becomes more severe ends and begins again. One that reaches a block which it never named, twice the heads that
it named, or another threshold (logits that grew fast are now above their level) is renewed: told again, with its places
of now. So each block renews an alarm once, however often it comes and goes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from attnscope.commands.watch.look import Alarm, Look
from attnscope.commands.watch.rule import History, Ringing, Rule, limits_of, rules
from attnscope.core.finding import SEVERITIES, Severity
from attnscope.core.words import entering, within

RISEN = 1.2  # a loss this many times its lowest value shows by itself that something is wrong
_QUIET = 2  # looks


@dataclass
class _Held:
    alarm: Alarm
    layers: set[int]  # that were ever named
    heads: set[tuple[int, int]]
    thresholds: set[float]  # that were ever passed
    quiet: int = 0

    @classmethod
    def of(cls, alarm: Alarm) -> _Held:
        return cls(alarm, set(alarm.layers), set(alarm.heads), {alarm.threshold})

    def renewed_by(self, now: Alarm) -> bool:
        """Whether this says what was not told; it is told then."""
        heads = self.heads.union(now.heads)
        news = (
            not self.layers.issuperset(now.layers)
            or len(heads) >= 2 * max(len(self.heads), 1)
            or now.threshold not in self.thresholds
        )
        if news:
            self.layers |= set(now.layers)
            self.heads, self.alarm = heads, now
            self.thresholds.add(now.threshold)
        return news


class Judge:
    """Mutable: it remembers the looks and which alarms hold. `known` are looks of before, of a run that is resumed."""

    def __init__(self, thresholds: Mapping[str, float | int] | None = None, known: Iterable[Look] = ()) -> None:
        self.limits = limits_of(thresholds)
        self.history = History()
        self._held: dict[tuple[str, str, str], _Held] = {}
        for look in known:
            self(look)

    def told(self, loss: float | None) -> None:
        """The loss of a step that is not looked at."""
        self.history.told(loss)

    def __call__(self, look: Look, broken: str | None = None) -> tuple[Alarm, ...]:
        """`broken` says where numbers stop being numbers, if whoever looked has found out."""
        self.history.add(look)
        self.history.broken = broken
        said: list[Alarm] = []
        for name, one in rules().items():
            ringing = {
                (r.stack, r.site): r for r in one(self.history, self.limits[name]) if r.where.any() or not r.where.size
            }
            for (stack, site), what in ringing.items():
                said += self._rings(one, (name, stack, site), what)
            for key, held in list(self._held.items()):
                if key[0] == name and key[1:] not in ringing:
                    held.quiet += 1
                    if held.quiet >= _QUIET:
                        said.append(self._ends(key))
        return tuple(said)

    def _rings(self, rule: Rule, key: tuple[str, str, str], what: Ringing) -> list[Alarm]:
        severity = what.severity or rule.severity
        held, ended = self._held.get(key), []
        if held is not None:
            held.quiet = 0
            if SEVERITIES.index(severity) <= SEVERITIES.index(held.alarm.severity):
                again = self._alarm(rule, what, held.alarm.severity, held.alarm.since)
                return [again] if held.renewed_by(again) else []
            ended = [self._ends(key)]
        alarm = self._alarm(rule, what, severity)
        self._held[key] = _Held.of(alarm)
        return [*ended, alarm]

    def _ends(self, key: tuple[str, str, str]) -> Alarm:
        alarm = self._held.pop(key).alarm
        sentence = f"Over since step {self.history.step:,}: {alarm.sentence[0].lower()}{alarm.sentence[1:]}"
        return replace(alarm, step=self.history.step, ended=True, renewed=False, sentence=sentence)

    def _alarm(self, rule: Rule, what: Ringing, severity: Severity, since: int | None = None) -> Alarm:
        """`since`: of one that holds already, from that step on."""
        step = self.history.step
        layers = tuple(int(n) for n in np.flatnonzero(what.where if what.where.ndim == 1 else what.where.any(axis=1)))
        heads = tuple((int(a), int(b)) for a, b in np.argwhere(what.where)) if what.where.ndim == 2 else ()
        stacks = {one.stack for one in self.history.looks[-1].values}
        place = _place(layers, heads, what)
        place += within(what.stack, what.site, len(stacks) > 1) if place else ""
        when = f"since step {step:,}" if since is None else f"at step {step:,}, and in part since step {since:,}"
        sentence = f"{what.what}{place}, {when}; {self._loss()}."
        return Alarm(
            rule=rule.name,
            severity=severity,
            step=step,
            since=step if since is None else since,
            stack=what.stack,
            site=what.site,
            layers=layers,
            heads=heads,
            value=what.value,
            threshold=what.threshold,
            sentence=sentence,
            advice=rule.advice,
            citation=rule.citation,
            renewed=since is not None,
        )

    def _loss(self) -> str:
        """In the past tense: an alarm is read again when the run is long over."""
        loss, lowest = self.history.loss, self.history.lowest
        if loss is None:
            return "the loss was not told"
        if not math.isfinite(loss):
            return "the loss was no number"
        if loss > RISEN * lowest:
            return f"the loss was {loss / lowest - 1:.0%} above its lowest"
        return "the loss was normal then"


def _place(layers: tuple[int, ...], heads: tuple[tuple[int, int], ...], ringing: Ringing) -> str:
    """` in block 3, heads 1 and 4`, ` in blocks 0, 2 and 3 (9 heads)`, ` in all blocks`; of the stream, `entering block
    2 and after the last block`: its row l is what enters block l."""
    if not layers:
        return ""
    if ringing.site == "stream":
        return f" {entering(layers, len(ringing.where) - 1)}"
    if len(layers) == 1:
        own = [head for _, head in heads]
        named = "" if not own else f", head{'s' if len(own) > 1 else ''} {_list(own)}"
        every = own and len(own) == ringing.where.shape[1] > 1
        return f" in block {layers[0]}" + (", all heads" if every else named)
    known = " in all blocks" if len(layers) == len(ringing.where) else f" in blocks {_list(layers)}"
    return known + (f" ({len(heads)} heads)" if heads else "")


def _list(numbers: Iterable[int], most: int = 6) -> str:
    words = [str(n) for n in numbers]
    if len(words) > most:
        return f"{', '.join(words[:most])} and {len(words) - most} more"
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
