"""The losses of two surveys and their difference, window by window if both predict the same tokens.

    change = loss_change(first, second)
    change.worse, change.difference, change.low, change.high
    change.sentence        "the loss rises by 2.00 nats per token (1.91 to 2.09): 4.60 → 6.60"

With equal fingerprints, window i has the difference d_i in nats per token and n_i predicted tokens. The mean of d_i,
weighted by n_i, and its interval are over windows (`stats.intervals.few_mean`): pairing removes the variation between
easy and hard text. Otherwise tokens differ, so nats per token cannot be compared, and the difference is in bits per
byte of text, with an interval for separate samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from attnscope.commands.scan.survey.survey import Survey
from attnscope.commands.scan.survey.trial import Exposure, Trial
from attnscope.stats.intervals import Interval, few_mean, unpaired_difference

Unit = Literal["nats per token", "bits per byte"]
_MOST_DIGITS = 6
_WIDE = 0.1  # share of the loss: a wider interval does not show that losses are the same


@dataclass(frozen=True)
class LossChange:
    """The losses of two surveys. `difference` is after minus before, in `unit`; NaN if they cannot be compared."""

    before: float  # nats per predicted token
    after: float
    bits_before: float  # bits per byte; NaN if the bytes are unknown
    bits_after: float
    unit: Unit
    difference: float
    low: float  # 95% interval of the difference
    high: float
    windows: int
    paired: bool
    future: bool = False  # the second model sees tokens that it predicts, and the first does not
    note: str = ""  # why the difference is unpaired or unknown
    survey: int = 1  # index in `Comparison.surveys`

    @property
    def worse(self) -> bool:
        """Whether the whole interval is above 0."""
        return self.low > 0

    @property
    def better(self) -> bool:
        """Whether the whole interval is below 0. A model that sees what it predicts is never better."""
        return self.high < 0 and not self.future

    @property
    def sentence(self) -> str:
        """What happened to the loss, for the middle of a sentence and without a full stop."""
        if math.isnan(self.difference):
            return f"the losses cannot be compared: {self.note}"
        token = self.unit == "nats per token"
        sides = (self.before, self.after) if token else (self.bits_before, self.bits_after)
        digits = _digits(self.low, self.high)
        values = " → ".join(f"{side:.{digits}f}" for side in sides)
        note = f"; {self.note}" if self.note else ""
        if self.difference == self.low == self.high == 0:
            return f"the loss is the same to the last digit: {sides[0]:.{digits}f} {self.unit}{note}"
        if not math.isfinite(self.low + self.high):
            return f"the loss goes {values} {self.unit}, and {_windows(self.windows)} cannot tell chance apart{note}"
        span = f"{self.low:.{digits}f} to {self.high:.{digits}f}"
        if not self.worse and self.high >= 0:
            if self.high - self.low > _WIDE * sides[0]:
                unsure = f"{_windows(self.windows)} cannot tell whether the loss changes"
                return f"{unsure}: {values} {self.unit} ({_signed(span)}){note}"
            return f"the loss is the same within chance: {values} {self.unit} ({_signed(span)}){note}"
        amount = abs(self.difference)
        if not self.worse:
            span = f"{-self.high:.{digits}f} to {-self.low:.{digits}f}"
        verb = "rises" if self.worse else "falls"
        void = self.future and not self.worse
        seen = ", which means nothing: this model sees the tokens that it predicts" if void else ""
        return f"the loss {verb} by {amount:.{digits}f} {self.unit} ({span}): {values}{seen}{note}"


def loss_change(first: Survey, other: Survey, survey: int = 1) -> LossChange | None:
    """Return the losses of two surveys, or None if one was not tried or predicts no tokens."""
    one, two = first.trial, other.trial
    if one is None or two is None or not one.loss or not two.loss:
        return None
    future = bool(exposures(other)) and not exposures(first)
    found, unit, paired, note = _difference(one, two)
    return LossChange(
        before=one.mean_loss,
        after=two.mean_loss,
        bits_before=one.bits_per_byte,
        bits_after=two.bits_per_byte,
        unit=unit,
        difference=found.mean,
        low=found.low,
        high=found.high,
        windows=found.n,
        paired=paired,
        future=future,
        note=note,
        survey=survey,
    )


def exposures(survey: Survey) -> tuple[Exposure, ...]:
    """Return the causal stacks whose outputs depend on later tokens."""
    trial = survey.trial
    return () if trial is None else tuple(each for each in trial.exposures if each.moved > each.rounding)


def same_tokens(one: Trial, two: Trial) -> bool:
    """Return whether both trials predict the same tokens of the same windows."""
    return one.fingerprint == two.fingerprint and one.task == two.task and one.counts == two.counts


def _difference(one: Trial, two: Trial) -> tuple[Interval, Unit, bool, str]:
    """Return the difference with its interval, its unit, whether it is paired, and a note."""
    if same_tokens(one, two):
        apart = [n * (b - a) for n, a, b in zip(one.counts, one.loss, two.loss, strict=True)]
        return few_mean(apart, [float(n) for n in one.counts]), "nats per token", True, ""
    unknown = Interval(math.nan, -math.inf, math.inf, 0, 0)
    if one.task != two.task:
        return unknown, "nats per token", False, f"one predicts the {one.task} and the other the {two.task}"
    if not (_bytes_known(one) and _bytes_known(two)):
        return unknown, "nats per token", False, "they predict different tokens, and the bytes of text are unknown"
    found = unpaired_difference(_bits(one), _bits(two))
    return found, "bits per byte", False, "their tokens differ, so the windows are not paired"


def _bytes_known(trial: Trial) -> bool:
    return len(trial.bytes) == len(trial.counts) and sum(trial.bytes) > 0


def _bits(trial: Trial) -> tuple[list[float], list[float]]:
    """Return the bits and the bytes of each window."""
    bits = [n * loss / math.log(2) for n, loss in zip(trial.counts, trial.loss, strict=True)]
    return bits, [float(size) for size in trial.bytes]


def _digits(low: float, high: float) -> int:
    """Return how many decimals show the width of an interval, at least two."""
    width = high - low
    if not math.isfinite(width) or width <= 0:
        return 2
    return min(max(2, 1 - math.floor(math.log10(width))), _MOST_DIGITS)


def _signed(span: str) -> str:
    low, _, high = span.partition(" to ")
    return f"{low} to {high if high.startswith('-') else f'+{high}'}"


def _windows(number: int) -> str:
    return f"{number} window{'' if number == 1 else 's'}"
