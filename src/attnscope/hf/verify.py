"""Does what the tap hands out agree with what the model did? Asked of every model, answered with numbers.

verify(model, batch) -> Verification: A V recomputed in float64 from queries, keys and rules against the
mixed values the module really passed on; row sums; nothing on the future where attention is causal; the
residual identity inside every block whose writes are separable; the output equal bit for bit to the
untouched forward.
"""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.hf.anatomy import Anatomy, anatomy, evaluating
from attnscope.hf.census import without_fast_path
from attnscope.hf.example import Batch, run, same_chance
from attnscope.hf.identity import residual_identities
from attnscope.hf.recompute import dense_pattern, one_sequence
from attnscope.hf.tap import Frame, TokenMasks, tap
from attnscope.hf.tensors import every_tensor
from attnscope.trace.frame import AttentionFrame, StreamFrame

_LOOSE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 4e-3}

_FLOAT32_SOFTMAX = 1e-5  # models may do their softmax in float32 whatever they compute in


@dataclass(frozen=True)
class Check:
    """One comparison over all layers: the largest difference, and how large it may be."""

    largest: float
    allowed: float

    @property
    def passed(self) -> bool:
        return self.largest <= self.allowed


@dataclass(frozen=True)
class Verification:
    """What was compared, how it came out, and by which routes attention was seen."""

    model_class: str
    routes: tuple[str, ...]
    checks: dict[str, Check]
    notes: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks.values())

    @property
    def largest(self) -> float:
        """The largest difference between recomputed and real mixed values, relative to their largest."""
        return self.checks["mixed"].largest

    @property
    def sentence(self) -> str:
        seen = f"{self.model_class}, seen by {' and '.join(self.routes)}"
        if self.passed:
            return f"{seen}: recomputed attention agrees with the model to {self.largest:.1e}, output unchanged."
        wrong = ", ".join(
            f"{name} differs by {c.largest:.1e} (allowed {c.allowed:.1e})"
            for name, c in self.checks.items()
            if not c.passed
        )
        return f"{seen}: NOT verified: {wrong}."


class _Comparison:
    """Receives frames and keeps only the largest differences."""

    def __init__(self) -> None:
        self.largest: dict[str, float] = defaultdict(float)
        self.seen: set[tuple[str, str, int]] = set()
        self.loosest = 0.0
        self.broken: set[tuple[str, str, int]] = set()  # where the model itself made NaN or infinity
        self.tokens: Tensor | None = None  # which tokens of the last stream are real

    def note(self, name: str, difference: Tensor) -> None:
        value = float(difference.max()) if difference.numel() else 0.0
        self.largest[name] = max(self.largest[name], float("inf") if math.isnan(value) else value)

    def receive(self, frame: Frame) -> None:
        self.seen.add((frame.stack, frame.site, frame.layer))
        if isinstance(frame, StreamFrame):
            self.tokens = frame.token_mask
            return
        self.loosest = max(self.loosest, _LOOSE.get(frame.mixed.dtype, 3e-2))
        for index in range(frame.mixed.shape[0]):
            self._one(frame, index)

    def _one(self, frame: AttentionFrame, index: int) -> None:
        queries = frame.query_mask[index]
        if not bool(frame.mixed[index][queries].isfinite().all()):
            self.broken.add((frame.stack, frame.site, frame.layer))
            return
        pattern = dense_pattern(one_sequence(frame.scores, index))[0]  # [head, query, key]
        value = frame.value[index].double().repeat_interleave(pattern.shape[0] // frame.value.shape[1], dim=0)
        mixed = frame.mixed[index].double()  # [query, head, channel]
        difference = ((pattern @ value).transpose(0, 1) - mixed)[queries]
        self.note("mixed", difference.abs() / mixed[queries].abs().max().clamp_min(1e-30))
        mass = pattern.sum(-1)[:, queries]
        # A learned sink takes what a row has left: such rows stay below one.
        self.note("row sums", (mass - 1).clamp_min(0) if frame.scores.sinks is not None else (mass - 1).abs())
        if frame.scores.causal:
            self.note("future", pattern.triu(1)[:, queries])
        padded = pattern[:, queries][:, :, ~frame.key_mask[index]]
        self.note("padding", padded)


def verify(
    model: nn.Module, batch: Batch, found: Anatomy | None = None, token_masks: TokenMasks | None = None
) -> Verification:
    """Compare everything the tap says about one batch with what the model did."""
    found = anatomy(model, batch) if found is None else found
    compared = _Comparison()
    with evaluating(model), torch.no_grad():
        with without_fast_path(found.fast_path), same_chance(model):
            untouched = [t.clone() for t in every_tensor(run(model, batch))]
        with tap(model, found, compared.receive, token_masks), same_chance(model):
            tapped = list(every_tensor(run(model, batch)))
        with (
            same_chance(model),
            without_fast_path(found.fast_path),
            residual_identities(model, found, lambda difference: compared.note("residual identity", difference)),
        ):
            run(model, batch)
        notes = _notes(model, batch, found, untouched, compared.tokens)
    if compared.broken:
        stack, site, layer = min(compared.broken)
        notes = (*notes, f"the model makes NaN or infinity: not compared from {stack} layer {layer} ({site}) on")
    missing = [
        f"{s.stack} layer {s.layer} {s.site}" for s in found.sites if (s.stack, s.site, s.layer) not in compared.seen
    ]
    if missing:
        raise RefusalError(
            f"{found.model_class} did not attend where its probe run did ({', '.join(missing[:3])}): "
            "give anatomy() example inputs of the same kind as the batch."
        )
    loosest = compared.loosest
    checks = {
        "mixed": Check(compared.largest["mixed"], loosest),
        "row sums": Check(compared.largest["row sums"], max(loosest, _FLOAT32_SOFTMAX)),
        "future": Check(compared.largest["future"], 0.0),
        "padding": Check(compared.largest["padding"], loosest),
        "residual identity": Check(compared.largest["residual identity"], loosest),
        "output": Check(_largest_difference(untouched, tapped), 0.0),
    }
    return Verification(found.model_class, found.routes, checks, notes)


def _largest_difference(left: list[Tensor], right: list[Tensor]) -> float:
    """Zero only where every tensor has the same bits (NaN where NaN was)."""
    if len(left) != len(right):
        return float("inf")
    largest = 0.0
    for a, b in zip(left, right, strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            return float("inf")
        if not torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) or not torch.equal(a.isnan(), b.isnan()):
            largest = max(largest, float((a.double() - b.double()).abs().nan_to_num(float("inf")).max()))
    return largest


def _notes(
    model: nn.Module, batch: Batch, found: Anatomy, untouched: list[Tensor], tokens: Tensor | None
) -> tuple[str, ...]:
    notes = []
    if found.fast_path:
        with warnings.catch_warnings(), same_chance(model):
            warnings.simplefilter("ignore")  # torch warns of nested tensors, which its fused path uses
            fused = list(every_tensor(run(model, batch)))
        pairs = [(_real(a, tokens), _real(b, tokens)) for a, b in zip(fused, untouched, strict=True)]
        difference = _largest_difference([a for a, _ in pairs], [b for _, b in pairs])
        notes.append(
            "torch's fused encoder path is another kernel and is switched off while tapped; "
            f"with it the output of this batch differs by {difference:.1e}"
        )
    if any(not stack.chained for stack in found.stacks):
        notes.append("blocks do not pass their stream on directly: the stream that leaves the last one is not shown")
    return tuple(notes)


def _real(output: Tensor, tokens: Tensor | None) -> Tensor:
    """The fused path fills padding with zeros: only real tokens are compared."""
    for candidate in () if tokens is None else (tokens, tokens.t()):
        if output.shape[:2] == candidate.shape:
            return output[candidate]
    return output
