"""What a scan finds out by interventions on the model, on a few windows of the corpus.

    trial = survey.trial
    trial.mean_loss, trial.unigram       nats per token, and the same of a unigram model
    trial.bits_per_byte
    trial.cost(trial.best(trial.parts[0]))   nats by which the loss changes if this half of a block writes more or less

A trial is a record, made by `commands.scan.trial`. Two trials with the same `fingerprint` predict the same
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
class Rescaled:
    """The loss of each window, and how far outputs move, when what a part writes is multiplied by a factor."""

    factor: Size  # 0: the part is removed
    loss: tuple[Size, ...]  # empty if the model predicts no tokens
    moved: Size  # relative to the norm of the outputs


@dataclass(frozen=True)
class Part:
    """One half of a block.

    `slope` is the derivative of the loss with respect to a factor on what the part writes. It is near 0 in a trained
    model, and positive if the model would predict better with a smaller write.
    """

    stack: str
    layer: Index
    half: Half
    write: Size  # norm of the write, divided by the norm of the stream it is added to: the median over tokens
    varies: Size  # share of the write that differs between tokens: 0 if it ignores its input
    slope: FiniteOrNan = math.nan
    head_slopes: tuple[Finite, ...] = ()  # the same for each head of attention
    rescaled: tuple[Rescaled, ...] = ()  # what was tried with this part

    @property
    def words(self) -> str:
        """Return `the MLP of block 3`."""
        return f"the {'MLP' if self.half == 'mlp' else self.half} of block {self.layer}"


@dataclass(frozen=True)
class HeadTrial:
    """One head, and what was tried with it."""

    stack: str
    layer: Index
    head: Index
    slope: Finite
    rescaled: tuple[Rescaled, ...] = ()


@dataclass(frozen=True)
class Exposure:
    """How far outputs of a causal stack at earlier tokens move when all later tokens are replaced."""

    stack: str
    moved: Size  # largest change, relative to the largest output
    rounding: Size  # the largest change that rounding can explain
    layer: Index | None = None  # the first block whose states at earlier tokens move


@dataclass(frozen=True)
class OddWeight:
    """A weight that stands out. Without a `parameter` it is most matrices of the model (`share` of them)."""

    parameter: str
    oddity: Literal["zero", "random", "grid", "copy"]
    value: Size  # share of rows, ratio to a random matrix, bits, or 1 for a copy
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
    heads: tuple[HeadTrial, ...] = ()
    tried_from: Index = 0  # the number of the first window on which parts were rescaled
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

    def mean(self, loss: tuple[float, ...], start: int = 0) -> float:
        """Return the mean of the losses of some windows, weighted by their predicted tokens."""
        counts = self.counts[start : start + len(loss)]
        tokens = sum(counts)
        if not tokens or len(counts) != len(loss):
            return math.nan
        return math.fsum(n * value for n, value in zip(counts, loss, strict=True)) / tokens

    def costs(self, tried: Rescaled) -> tuple[float, ...]:
        """Return by how many nats the loss of each window rises with a rescaled part."""
        return tuple(new - old for new, old in zip(tried.loss, self.loss[self.tried_from :], strict=False))

    def cost(self, tried: Rescaled) -> float:
        """Return by how many nats the loss rises with a rescaled part; NaN without a task."""
        return self.mean(self.costs(tried), self.tried_from)

    def best(self, part: Part | HeadTrial) -> Rescaled | None:
        """Return the factor that lowers the loss most, or None if none was tried."""
        known = [tried for tried in part.rescaled if math.isfinite(self.cost(tried))]
        return min(known, key=self.cost, default=None)
