"""Does what the tap hands out agree with what the model did? Asked of every model, answered with numbers.

verify(model, batch) -> Verification, of which every check is over all layers and real tokens:

    mixed              A V recomputed in float64 from queries, keys and rules (the masks the model gave, in the form
                       frames have them), against the mixed values the module really passed on
    row sums           rows of the pattern sum to one, or to less with a learned sink
    future             where the probe found causal attention, the pattern of this batch has nothing above the diagonal;
                       a frame that says causal where the probe did not counts as one. For rebuilt patterns this
                       compares two readings of the model's masks; that the model itself obeys them is shown by `mixed`
    padding            no real query attends to padding
    unseen keys        how many keys count as real though no real query may see them: padding that went unnoticed
    residual identity  inside every block whose writes are separable
    output             equal bit for bit to the untouched forward
"""

from __future__ import annotations

import math
import warnings
from collections import Counter, defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.data.frame import AttentionFrame, StreamFrame
from attnscope.hf.anatomy.anatomy import Anatomy, anatomy
from attnscope.hf.anatomy.example import Batch, run, same_chance
from attnscope.hf.intercepting.owners import every_tensor, same_numbers
from attnscope.hf.intercepting.recompute import dense_pattern, one_sequence, visible
from attnscope.hf.intercepting.restoring import evaluating
from attnscope.hf.intercepting.wrappers import without_fast_path
from attnscope.hf.tapping.identity import residual_identities
from attnscope.hf.tapping.padding import TokenMasks
from attnscope.hf.tapping.tap import Frame, repeating_paths, tap

LOOSE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 4e-3}

_FLOAT32_SOFTMAX = 1e-5  # models may do their softmax in float32 whatever they compute in
_NOTHING = 1e-6  # what a forbidden key may get: masks are exact in every precision


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
    broken: tuple[str, ...] = ()  # where the model makes NaN or infinity itself, so that nothing is compared from there

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
            limits = f" except from {' and '.join(self.broken)} on, where the model makes NaN," if self.broken else ""
            agrees = f"recomputed attention agrees with the model to {self.largest:.1e},"
            return f"{seen}: {agrees}{limits} output unchanged."
        wrong = ", ".join(
            f"{name} differs by {c.largest:.1e} (allowed {c.allowed:.1e})"
            for name, c in self.checks.items()
            if not c.passed
        )
        return f"{seen}: NOT verified: {wrong}."


class _Comparison:
    """Receives frames and keeps only the largest differences."""

    def __init__(self, found: Anatomy) -> None:
        self.largest: dict[str, float] = defaultdict(float)
        self.causal = {(s.stack, s.site, s.layer) for s in found.sites if s.causal}
        self.seen: Counter[tuple[str, str, int]] = Counter()
        self.loosest = 0.0
        self.broken: set[tuple[str, str, int]] = set()  # where the model itself made NaN or infinity
        self.tokens: Tensor | None = None  # which tokens of the last stream are real

    def note(self, name: str, difference: Tensor) -> None:
        value = float(difference.max()) if difference.numel() else 0.0
        self.largest[name] = max(self.largest[name], float("inf") if math.isnan(value) else value)

    def receive(self, frame: Frame) -> None:
        self.seen[frame.stack, frame.site, frame.layer] += 1
        if isinstance(frame, StreamFrame):
            self.tokens = frame.token_mask
            return
        self.loosest = max(self.loosest, LOOSE.get(frame.mixed.dtype, 3e-2))
        for index in range(frame.mixed.shape[0]):
            self._one(frame, index)

    def _one(self, frame: AttentionFrame, index: int) -> None:
        queries = frame.query_mask[index]
        if not bool(frame.mixed[index][queries].isfinite().all()):
            self.broken.add((frame.stack, frame.site, frame.layer))
            return
        pattern = dense_pattern(one_sequence(frame.scores, index))[0]  # [head, query, key]
        value = frame.value[index].double().repeat_interleave(pattern.shape[0] // frame.value.shape[1], dim=0)
        passed_on = frame.mixed if frame.attended is None else frame.attended
        mixed = passed_on[index].double()  # [query, head, channel]
        difference = ((pattern @ value).transpose(0, 1) - mixed)[queries]
        size = mixed[queries].abs().max()
        if frame.holds is not None:  # signed weights cancel, and what is left has the rounding of what was mixed
            size = torch.maximum(size, value[:, frame.key_mask[index]].abs().max())
        self.note("mixed", difference.abs() / size.clamp_min(1e-30))
        mass = pattern.sum(-1)[:, queries]
        # A learned sink takes what a row has left: such rows stay below one.
        if frame.sums_to_one:
            self.note("row sums", (mass - 1).clamp_min(0) if frame.scores.sinks is not None else (mass - 1).abs())
        if (frame.stack, frame.site, frame.layer) in self.causal:
            self.note("future", pattern.triu(1)[:, queries].abs())
        elif frame.scores.causal and pattern.shape[1] > 1:
            self.note("future", pattern.new_ones(1))
        keys = frame.key_mask[index]
        self.note("padding", pattern[:, queries][:, :, ~keys].abs())
        if bool(queries.any()):
            seen = visible(one_sequence(frame.scores, index))[0]  # [head or 1, query, key]
            self.note("unseen keys", (keys & ~seen[:, queries].flatten(0, 1).any(dim=0)).sum().double())

    def broken_from(self, found: Anatomy) -> tuple[str, ...]:
        """The first layer of every stack where the model itself makes NaN."""
        first: dict[str, int] = {}
        for stack, _, layer in self.broken:
            first[stack] = min(layer, first.get(stack, layer))
        several = len({site.stack for site in found.sites}) > 1
        return tuple(f"{stack} layer {first[stack]}" if several else f"layer {first[stack]}" for stack in sorted(first))


def verify(
    model: nn.Module, batch: Batch, found: Anatomy | None = None, token_masks: TokenMasks | None = None
) -> Verification:
    """Compare everything the tap says about one batch with what the model did."""
    found = anatomy(model, batch) if found is None else found
    compared = _Comparison(found)
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
    broken = compared.broken_from(found)
    if broken:
        notes = (*notes, f"the model makes NaN or infinity: not compared from {' and '.join(broken)} on")
    # How often a module attends at one place may depend on the batch (once for every picture); elsewhere it may not.
    any_number = repeating_paths(found)
    expected = Counter((s.stack, s.site, s.layer) for s in found.sites if s.path not in any_number)
    expected |= Counter({(s.stack, s.site, s.layer): 1 for s in found.sites})
    missing = [f"{stack} layer {layer} {site}" for stack, site, layer in expected - compared.seen]
    if missing:
        raise RefusalError(
            f"{found.model_class} did not attend where it did on the batch it was probed with "
            f"({', '.join(missing[:3])}): give batches that all take the same path through the model."
        )
    loosest = compared.loosest
    checks = {
        "mixed": Check(compared.largest["mixed"], loosest),
        "row sums": Check(compared.largest["row sums"], max(loosest, _FLOAT32_SOFTMAX)),
        "future": Check(compared.largest["future"], 0.0),
        "padding": Check(compared.largest["padding"], _NOTHING),
        "unseen keys": Check(compared.largest["unseen keys"], 0.0),
        "residual identity": Check(compared.largest["residual identity"], loosest),
        "output": Check(_largest_difference(untouched, tapped), 0.0),
    }
    return Verification(found.model_class, found.routes, checks, notes, broken)


def _largest_difference(left: list[Tensor], right: list[Tensor]) -> float:
    """Zero only where every tensor has the same bits (NaN where NaN was)."""
    if len(left) != len(right):
        return float("inf")
    largest = 0.0
    for a, b in zip(left, right, strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            return float("inf")
        if not same_numbers(a, b):
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
