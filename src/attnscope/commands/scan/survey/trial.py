"""What a scan finds out by interventions on the model, on a few windows of the corpus.

    trial = survey.trial
    trial.mean_loss, trial.unigram       nats per token, and the same of a unigram model
    trial.bits_per_byte
    trial.parts[0].cost                  nats by which the loss rises without this half of a block

A trial is a record, computed by `commands.scan.interventions`. Two trials with the same `fingerprint` predict the same
tokens, so their losses can be compared window by window.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from attnscope.core.ranges import AsMany, Count, Finite, FiniteOrNan, Index, Share, Size, SizeOrNan

Half = Literal["attention", "mlp"]
Task = Literal["next token", "masked token"]


@dataclass(frozen=True)
class Part:
    """One half of a block. `slope` and `loss` are missing if the model predicts no tokens."""

    stack: str
    layer: Index
    half: Half
    write: Size  # norm of what it writes, divided by the norm of the stream it is added to, mean over tokens
    varies: Size  # share of the write that differs between tokens: 0 if it ignores its input
    slope: FiniteOrNan = (
        math.nan
    )  # derivative of the loss with respect to a factor on the write: > 0 if a smaller write is better
    head_slopes: tuple[Finite, ...] = ()  # the same for each head of attention
    loss: tuple[Size, ...] = ()  # loss of each window without this part; empty if that was not tried
    moved: SizeOrNan = math.nan  # change of the outputs without this part, relative to their norm; NaN: not tried


@dataclass(frozen=True)
class HeadRemoval:
    """The loss of each window without one head."""

    stack: str
    layer: Index
    head: Index
    loss: tuple[Size, ...]


@dataclass(frozen=True)
class Exposure:
    """How far outputs of a causal stack at earlier tokens move when all later tokens are replaced."""

    stack: str
    moved: Size  # largest change, relative to the largest output
    rounding: Size  # the largest change that rounding can explain
    layer: Index | None = None  # the first block whose states at earlier tokens move


@dataclass(frozen=True)
class OddWeight:
    """A weight that stands out: what is odd about it, and by how much."""

    parameter: str
    oddity: Literal["zero", "constant", "random", "grid", "copy"]
    value: Finite
    stack: str = ""
    layer: Index | None = None
    share: Share = 1.0  # of the tensor's rows
    of: str = ""  # for a copy: the other parameter


@dataclass(frozen=True)
class Trial:
    """The loss of a few windows, and what changes it."""

    fingerprint: str  # hash of the token ids of the windows
    task: Task | None  # None: the model predicts no tokens
    counts: tuple[Count, ...] = ()  # predicted tokens of each window
    loss: Annotated[tuple[Size, ...], AsMany("counts")] = ()  # nats per predicted token, of each window
    bytes: tuple[Count, ...] = ()  # UTF-8 bytes of the predicted tokens of each window; empty if unknown
    unigram: SizeOrNan = math.nan  # nats per token of a unigram model of the other windows
    exposures: tuple[Exposure, ...] = ()
    order: SizeOrNan = math.nan  # change of the last states when positions are reversed, relative to their norm
    order_rounding: SizeOrNan = math.nan  # the largest change that rounding can explain
    parts: tuple[Part, ...] = ()
    heads: tuple[HeadRemoval, ...] = ()
    weights: tuple[OddWeight, ...] = ()
    notes: tuple[str, ...] = ()  # what could not be tried, and why

    @property
    def mean_loss(self) -> float:
        """The loss in nats per predicted token over all windows; NaN without a task."""
        return self.mean(self.loss)

    @property
    def bits_per_byte(self) -> float:
        """The loss in bits per byte of text; NaN if the bytes are unknown."""
        if not self.bytes or not sum(self.bytes):
            return math.nan
        return self.mean_loss * sum(self.counts) / sum(self.bytes) / math.log(2)

    def mean(self, loss: tuple[float, ...]) -> float:
        """Return the mean of losses of the first windows, weighted by their predicted tokens."""
        counts = self.counts[: len(loss)]
        tokens = sum(counts)
        if not tokens or len(counts) != len(loss):
            return math.nan
        return math.fsum(n * value for n, value in zip(counts, loss, strict=True)) / tokens

    def cost(self, removed: Part | HeadRemoval) -> float:
        """Return by how many nats the loss rises without a part or head; NaN if that was not tried."""
        return self.mean(removed.loss) - self.mean(self.loss[: len(removed.loss)])

    def costs(self, removed: Part | HeadRemoval) -> tuple[float, ...]:
        """Return by how many nats the loss of each window rises without a part or head; empty if not tried."""
        return tuple(without - whole for without, whole in zip(removed.loss, self.loss, strict=False))
