"""Compute the bounds of `matrix.collapse_bounds` and the bounded values for a model that runs on a few sequences.

Bounds of a block use what its attention read and wrote in the same run, so they hold whatever norms are around it. All
projections of the block must be known, and its logits must be s X W_QK X^T (X holds the tokens, s is the scale).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnscope.data.frame import AttentionFrame, StreamFrame, WeightsFrame
from attnscope.hf.anatomy.anatomy import Anatomy, Site, Stack
from attnscope.hf.anatomy.weights import weights
from attnscope.hf.intercepting.masks import dense_pattern, one_sequence, visible
from attnscope.matrix.collapse_bounds import (
    SPREAD_LIMIT,
    HeadNorms,
    birkhoff_bound,
    cubic_constant,
    dobrushin,
    head_norms,
    mixing_strength,
    paper_bound,
    power,
)
from attnscope.matrix.residual import composite_norm, residual_about_mean
from attnscope.matrix.scores import Scores
from attnscope.matrix.similarity import diameter

MASKED = "a mask hides keys"
TURNED = "its logits are not a plain product of tokens (they are rotated, capped, or have a position bias)"
UNKNOWN = "its projections were not recognised"
LEAKING = "rows of its patterns do not sum to one"
OVERFLOWING = "its numbers became NaN or infinite"
SANDWICHED = "there is a norm between attention and the skip"
FOLDED = "it attends within windows, frames or channels of a sequence"
SCALED = "what its attention writes is changed before it is added to the stream"
OF_SKIPS = (UNKNOWN, FOLDED, LEAKING, OVERFLOWING, SANDWICHED, SCALED)  # reasons why bound (d) does not apply


@dataclass(frozen=True)
class Known:
    """All projections of one block's attention."""

    query: Float[Tensor, "head width dim"]
    key: Float[Tensor, "head width dim"]
    value: Float[Tensor, "head width value_dim"]
    output: Float[Tensor, "head value_dim width"]
    scale: float
    norms: HeadNorms


def known_weights(model: nn.Module, structure: Anatomy, stack: Stack) -> dict[int, Known]:
    """Return projections by block, for blocks whose projections were all recognised."""
    own = (f for f in weights(model, structure) if (f.stack, f.site) == (stack.name, "self"))
    return {frame.layer: known for frame in own if (known := _known(frame)) is not None}


def _known(frame: WeightsFrame) -> Known | None:
    query, key, value, output = frame.query_weight, frame.key_weight, frame.value_weight, frame.output_weight
    if query is None or key is None or value is None or output is None:
        return None
    return Known(query, key, value, output, frame.scale, head_norms(query, key, value, output))


def reads_other_tokens(
    pattern: Float[Tensor, "1 head n n"],
    tokens: Float[Tensor, "1 n width"],
    mixed: Float[Tensor, "n head value_dim"],
    own: Known,
    epsilon: float,
) -> bool:
    """Return whether attention mixed something other than P X W_V plus a bias (P: the pattern), say a norm of X."""
    expected = torch.einsum("hqk,kw,hwd->qhd", pattern[0].double(), tokens[0], own.value.double())
    apart = expected - mixed
    allowed = 1e-6 * mixed.abs().max() + 4096 * epsilon * (expected.abs().max() + mixed.abs().max())
    return not bool((apart - apart.mean(0)).abs().max() <= allowed)


def differ_from_product(
    scores: Scores, real: Bool[Tensor, " token"], tokens: Float[Tensor, "n width"], own: Known, epsilon: float
) -> bool:
    """Return whether logits differ from s X W_QK X^T by more than terms per query and per key, which (b) cancels."""
    logits = _logits(scores)[0][:, real][..., real]
    query, key = (torch.einsum("nw,hwd->hnd", tokens, m.double()) for m in (own.query, own.key))
    product = own.scale * query @ key.mT
    apart = (_interaction(logits) - _interaction(product)).abs().max()
    allowed = 1e-6 * _interaction(product).abs().max() + 256 * epsilon * (1 + product.abs().max() + logits.abs().max())
    return not bool(apart <= allowed)


def _logits(scores: Scores) -> Float[Tensor, "1 head query key"]:
    """Return the logits up to a constant per row. If the model returned its pattern, return log(pattern)."""
    if scores.pattern is not None:
        return scores.pattern.double().clamp_min(1e-300).log()
    key = scores.key.double().repeat_interleave(scores.sharing, dim=1)
    logits = scores.scale * scores.query.double() @ key.mT
    if scores.softcap is not None:
        logits = scores.softcap * torch.tanh(logits / scores.softcap)
    return logits if scores.bias is None else logits + scores.bias.double()


def _interaction(matrix: Float[Tensor, "head n n"]) -> Float[Tensor, "head n n"]:
    return matrix - matrix.mean(-1, keepdim=True) - matrix.mean(-2, keepdim=True) + matrix.mean((-2, -1), keepdim=True)


@dataclass(frozen=True)
class Reading:
    """Measured values and bounds of one block in one sequence. A bound that does not apply is None."""

    layer: int
    before: float
    after: float
    contraction: float
    strength: float  # the factor k of bound (a)
    tau: float
    residual_before: float
    residual_after: float
    tau_violated: bool
    rounding: float  # the largest distance of two written tokens that rounding alone can cause
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
        """Return how many bounds of this block are exceeded by more than rounding."""
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
    """Observe one forward pass of a few sequences (`tap` and `attention_inputs`) and keep a `Reading` of each block."""

    def __init__(self, stack: Stack, known: dict[int, Known]) -> None:
        self.stack = stack
        self.weights = known
        self.readings: list[Reading] = []
        self.reasons: dict[str, None] = {}
        self.last: list[tuple[float, float]] = []  # diameter and residual of the stream after the last block
        self._read: dict[int, Tensor] = {}
        self._streams: dict[int, Tensor] = {}
        self._added: dict[int, Tensor] = {}
        self._writes: list[Float[Tensor, "n width"]] = []  # what the projections write, for each of `readings`
        self._rows: list[tuple[int, Tensor]] = []  # index of the sequence and its token mask, for each of `readings`

    def took(self, site: Site, tokens: Float[Tensor, "batch token width"]) -> None:
        if site.stack == self.stack.name:
            self._read[site.layer] = tokens.detach().clone()

    def wrote(self, layer: int, write: Float[Tensor, "batch token width"]) -> None:
        """Keep what the block adds to its stream."""
        self._added[layer] = write.detach().clone()

    def refuse_other_writes(self) -> None:
        """Drop bound (d) for blocks that rescale the output of their projections (as LayerScale does) before adding it.

        A bias is the same for every token and does not matter. Call this after the pass.
        """
        for number, (write, (index, real)) in enumerate(zip(self._writes, self._rows, strict=True)):
            reading = self.readings[number]
            added = self._added.get(reading.layer)
            if added is None or reading.growth is None:
                continue
            apart = float(diameter((added[index][real].double() - write)[None]))
            if apart > 1e-6 * reading.after + 2 * reading.rounding:
                self.reasons[SCALED] = None
                self.readings[number] = replace(reading, growth=None, skip_strength=None)

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
                self._read_sequence(frame, index, *(x[index][real][None].double() for x in (tokens, stream)))

    def _read_sequence(
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
        if reason is None and differ_from_product(scores, real, tokens[0], own, epsilon):
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
        """Fit p in after ~ before^p over blocks and sequences. Return p and the number of points.

        Only values above rounding count, and only blocks whose logits are a plain product, as the theory assumes. p is
        NaN if the diameters before the blocks span less than a factor 10.
        """
        pairs = [(r.before, r.after) for r in self.readings if r.cubic is not None and r.after > 16 * r.rounding]
        widths = [before for before, _ in pairs if before > 0]
        if not widths or max(widths) < 10 * min(widths):
            return float("nan"), len(pairs)
        return power(pairs)


def _sizes(tokens: Float[Tensor, "1 n width"]) -> tuple[float, float]:
    return float(diameter(tokens)), float(composite_norm(residual_about_mean(tokens)))
