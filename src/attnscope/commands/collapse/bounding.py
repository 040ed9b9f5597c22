"""Bounds beside the truth, from a few sequences: everything that `matrix.collapse_bounds` says of a running model.

A layer is judged by what its attention read and wrote in that very run, so that its bounds hold whatever norms stand
around it. Bounds from the first layer to the last leave norms out, as the theorems do: they are bounds on a model that
has none, and only figures beside the truth on one that has some, which is said.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.commands.collapse.known_weights import Known, reads_other_tokens, turned
from attnscope.commands.collapse.record import LayerBounds, SkipBounds
from attnscope.data.frame import AttentionFrame, StreamFrame
from attnscope.hf.anatomy.anatomy import Site, Stack
from attnscope.hf.intercepting.recompute import dense_pattern, one_sequence, visible
from attnscope.matrix.collapse_bounds import (
    SPREAD_LIMIT,
    birkhoff_bound,
    cubic_constant,
    dobrushin,
    mixing_strength,
    paper_bound,
    power,
)
from attnscope.matrix.residual import composite_norm, residual_about_mean
from attnscope.matrix.similarity import diameter

MASKED = "a mask hides keys"
TURNED = "its logits are not a plain product of tokens (they are rotated, capped, or have a position bias)"
UNKNOWN = "its projections were not recognised"
LEAKING = "rows of its patterns do not sum to one"
OVERFLOWING = "its numbers became NaN or infinite"
SANDWICHED = "a norm stands between attention and the skip"
FOLDED = "it attends within windows, frames or channels of a sequence"
SCALED = "what its attention writes is changed before it is added to the stream"
OF_SKIPS = (UNKNOWN, FOLDED, LEAKING, OVERFLOWING, SANDWICHED, SCALED)  # those that keep (d) from speaking


@dataclass(frozen=True)
class Reading:
    """One layer in one sequence. None: the bound does not apply to it."""

    layer: int
    before: float
    after: float
    contraction: float
    strength: float  # k of (a)
    tau: float
    residual_before: float
    residual_after: float
    tau_violated: bool
    rounding: float  # how far rounding alone can put two written tokens apart
    cubic_factor: float | None = None
    tau_bound: float | None = None
    paper_factor: float | None = None
    paper: float | None = None
    spread: float | None = None
    growth: float | None = None
    skip_strength: float | None = None
    skip_rounding: float = 0.0

    @property
    def cubic(self) -> float | None:
        return None if self.cubic_factor is None else self.cubic_factor * self.before**3

    @property
    def violations(self) -> int:
        """Bounds of this layer that the truth exceeds by more than rounding."""
        held = [(self.after, self.contraction), (self.after, self.cubic)]
        if self.spread is not None and self.spread <= SPREAD_LIMIT:
            held.append((self.residual_after, self.paper))
        over = sum(b is not None and truth > b * (1 + 1e-9) + self.rounding for truth, b in held)
        return over + self.tau_violated

    @property
    def skip_violated(self) -> bool:
        if self.growth is None or self.skip_strength is None:
            return False
        return abs(self.growth - 1) > self.skip_strength * (1 + 1e-9) + 1e-9 + self.skip_rounding


class Bounding:
    """Listens to one forward pass of a few sequences (`tap` and `attention_inputs`) and keeps numbers only."""

    def __init__(self, stack: Stack, known: dict[int, Known]) -> None:
        self.stack = stack
        self.weights = known
        self.readings: list[Reading] = []
        self.reasons: dict[str, None] = {}
        self.last: list[tuple[float, float]] = []  # diameter and residual of the stream that leaves
        self._read: dict[int, Tensor] = {}
        self._streams: dict[int, Tensor] = {}
        self._added: dict[int, Tensor] = {}
        self._writes: list[Float[Tensor, "n width"]] = []  # beside `readings`: what the projections say was written
        self._rows: list[tuple[int, Tensor]] = []  # and whose it is: number of the sequence, and its tokens

    def took(self, site: Site, tokens: Float[Tensor, "batch token width"]) -> None:
        if site.stack == self.stack.name:
            self._read[site.layer] = tokens.detach().clone()

    def wrote(self, layer: int, write: Float[Tensor, "batch token width"]) -> None:
        """What the block adds to its stream."""
        self._added[layer] = write.detach().clone()

    def refuse_other_writes(self) -> None:
        """(d) is about what the projections write: not where the block adds something else (LayerScale). A bias, the
        same for every token, does not matter. To be called when the pass is over."""
        for place, (write, (index, real)) in enumerate(zip(self._writes, self._rows, strict=True)):
            reading = self.readings[place]
            added = self._added.get(reading.layer)
            if added is None or reading.growth is None:
                continue
            apart = float(diameter((added[index][real].double() - write)[None]))
            if apart > 1e-6 * reading.after + 2 * reading.rounding:
                self.reasons[SCALED] = None
                self.readings[place] = replace(reading, growth=None, skip_strength=None)

    def receive(self, frame: StreamFrame | AttentionFrame) -> None:
        if frame.stack != self.stack.name or frame.site not in ("stream", "self"):
            return
        if isinstance(frame, StreamFrame):
            self._streams[frame.layer] = frame.stream.detach().clone()
            if frame.layer == self.stack.blocks[-1].layer + 1:
                for stream, real in zip(frame.stream, frame.token_mask, strict=True):
                    self.last.append(_sizes(stream[real][None].double()))
            return
        tokens, stream = self._read.pop(frame.layer, None), self._streams.pop(frame.layer, None)
        if tokens is None or stream is None or frame.layer not in self.weights:
            self.reasons[UNKNOWN] = None
            return
        if tokens.shape[:2] != frame.query_mask.shape or stream.shape[:2] != frame.query_mask.shape:
            self.reasons[FOLDED] = None
            return
        for index, real in enumerate(frame.query_mask):
            if int(real.sum()) > 1:
                self._one(frame, index, tokens[index][real][None].double(), stream[index][real][None].double())

    def _one(
        self, frame: AttentionFrame, index: int, tokens: Float[Tensor, "1 n width"], stream: Float[Tensor, "1 n width"]
    ) -> None:
        own = self.weights[frame.layer]
        norms = own.norms
        real = frame.query_mask[index]
        scores = one_sequence(frame.scores, index)
        pattern = dense_pattern(scores)[:, :, real][..., real]
        if not all(bool(part.isfinite().all()) for part in (tokens, stream, frame.mixed[index][real])):
            self.reasons[OVERFLOWING] = None
            return
        if float((pattern.sum(-1) - 1).abs().max()) > 1e-4:
            self.reasons[LEAKING] = None
            return
        mixed = frame.mixed[index][real].double()
        if reads_other_tokens(pattern, tokens, mixed, own, torch.finfo(frame.mixed.dtype).eps):
            self.reasons[UNKNOWN] = None
            return
        write = torch.einsum("nhd,hdw->nw", mixed, own.output.double())[None]
        before, residual_before = _sizes(tokens)
        after, residual_after = _sizes(write)
        strength = float(mixing_strength(pattern, norms))
        taus = dobrushin(pattern)[0]
        epsilon = torch.finfo(frame.mixed.dtype).eps
        fields: dict[str, float | bool] = {}
        seen = visible(scores).expand(1, pattern.shape[1], *frame.scores.query.shape[2:3], -1)
        reason = MASKED if not bool(seen[:, :, real][..., real].all()) else None
        if reason is None and turned(scores, real, tokens[0], own, epsilon):
            reason = TURNED
        if reason is None:
            bound = birkhoff_bound(tokens, norms, own.scale)[0]
            paper = paper_bound(tokens, own.query, own.key, norms, own.scale)
            fields = {
                "cubic_factor": cubic_constant(norms, own.scale),
                "tau_bound": float(bound.max()),
                "tau_violated": bool((taus > bound * (1 + 1e-9) + 64 * epsilon).any()),
                "paper_factor": float(paper.factor),
                "paper": float(paper.residual),
                "spread": float(paper.spread),
            }
        else:
            self.reasons[reason] = None
        written = next(block for block in self.stack.blocks if block.layer == frame.layer).writes
        wide = float(diameter(stream))
        if written.norm == "sandwich":
            self.reasons[SANDWICHED] = None
        elif written.identities and wide > 0:
            multiplier = written.identities[0].multiplier
            summed = stream + multiplier * write
            fields["growth"] = float(diameter(summed)) / wide
            fields["skip_rounding"] = 64 * epsilon * float(composite_norm(summed)) / wide
            fields["skip_strength"] = abs(multiplier) * strength * before / wide
        self._writes.append(write[0])
        self._rows.append((index, real))
        self.readings.append(
            Reading(
                layer=frame.layer,
                before=before,
                after=after,
                contraction=strength * before,
                strength=strength,
                tau=float(taus.max()),
                residual_before=residual_before,
                residual_after=residual_after,
                rounding=64 * epsilon * float(composite_norm(write)),
                **{"tau_violated": False, **fields},  # type: ignore[arg-type]
            )
        )

    def by_layer(self) -> dict[int, list[Reading]]:
        layers = sorted({reading.layer for reading in self.readings})
        return {layer: [r for r in self.readings if r.layer == layer] for layer in layers}

    def order(self) -> tuple[float, int]:
        """p in after ~ before^p over layers and sequences, and how many those are; NaN where they are too alike to say.

        Only where logits are a plain product, of which alone the theory speaks, and above rounding.
        """
        pairs = [(r.before, r.after) for r in self.readings if r.cubic is not None and r.after > 16 * r.rounding]
        widths = [before for before, _ in pairs if before > 0]
        if not widths or max(widths) < 10 * min(widths):
            return float("nan"), len(pairs)
        return power(pairs)

    def table(self) -> tuple[LayerBounds, ...]:
        return tuple(_layer_bounds(layer, readings) for layer, readings in self.by_layer().items())

    def skip_table(self) -> tuple[SkipBounds, ...]:
        rows = []
        for layer, readings in self.by_layer().items():
            known = [(r.growth, r.skip_strength) for r in readings if r.growth is not None]
            if known:
                growth, strength = (median(float(v or 0.0) for v in side) for side in zip(*known, strict=True))
                rows.append(SkipBounds(layer, len(known), growth, strength, sum(r.skip_violated for r in readings)))
        return tuple(rows)


def _layer_bounds(layer: int, readings: list[Reading]) -> LayerBounds:
    def middle(name: str) -> float | None:
        known = [value for r in readings if (value := getattr(r, name)) is not None]
        return median(known) if known else None

    spreads = [r.spread for r in readings if r.spread is not None]
    return LayerBounds(
        layer=layer,
        sequences=len(readings),
        before=median(r.before for r in readings),
        after=median(r.after for r in readings),
        contraction=median(r.contraction for r in readings),
        cubic=middle("cubic"),
        tau=median(r.tau for r in readings),
        tau_bound=middle("tau_bound"),
        residual_before=median(r.residual_before for r in readings),
        residual_after=median(r.residual_after for r in readings),
        paper=middle("paper"),
        spread=max(spreads) if spreads else None,
        condition_met=sum(s <= SPREAD_LIMIT for s in spreads) if spreads else None,
        rounding=median(r.rounding for r in readings),
        violations=sum(r.violations for r in readings),
    )


def _sizes(tokens: Float[Tensor, "1 n width"]) -> tuple[float, float]:
    return float(diameter(tokens)), float(composite_norm(residual_about_mean(tokens)))
