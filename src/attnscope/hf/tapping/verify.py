"""Check that the frames of the tap agree with the model: verify(model, batch) -> Verification.

Every check covers all blocks and all real tokens (those that are not padding):

    mixed              A V (the pattern times the values), recomputed in float64 from the queries, keys and masks of
                       the frames, equals the mixed values of the model
    row sums           rows of the pattern sum to one, or to less with a learned sink
    future             if the probe found causal attention, the pattern of this batch is zero above the diagonal; a
                       frame that is causal although the probe was not counts as a difference of one. For rebuilt
                       patterns this compares two readings of the masks; `mixed` shows that the model obeys them
    padding            no real query attends to padding
    unseen keys        the number of keys that count as real, but that no real query may see: unnoticed padding
    residual identity  in every block with separable writes, the output is the input plus the writes
    output             the output is equal bit for bit to the output of the model without the tap
"""

from __future__ import annotations

import math
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.data.frame import AttentionFrame, StreamFrame
from attnscope.hf.anatomy.anatomy import Anatomy, Block, anatomy
from attnscope.hf.anatomy.example import Batch, run, same_chance
from attnscope.hf.anatomy.recording import Location, read_at
from attnscope.hf.intercepting.masks import dense_pattern, one_sequence, visible
from attnscope.hf.intercepting.owners import at, every_tensor, same_numbers
from attnscope.hf.intercepting.restoring import Restoring, evaluating
from attnscope.hf.intercepting.wrappers import without_fast_path
from attnscope.hf.tapping.padding import TokenMasks
from attnscope.hf.tapping.tap import Frame, repeating_paths, tap

LOOSE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 4e-3}

_FLOAT32_SOFTMAX = 1e-5  # models may compute their softmax in float32 whatever their dtype
_NOTHING = 1e-6  # largest weight of a hidden key: masks are exact in every precision


@dataclass(frozen=True)
class Check:
    """One comparison over all blocks: the largest difference, and the largest allowed one."""

    largest: float
    allowed: float

    @property
    def passed(self) -> bool:
        return self.largest <= self.allowed


@dataclass(frozen=True)
class Verification:
    """The checks of one model, and the routes by which its attention was observed."""

    model_class: str
    routes: tuple[str, ...]
    checks: dict[str, Check]
    notes: tuple[str, ...]
    broken: tuple[str, ...] = ()  # where the model itself first makes NaN or infinity: nothing is compared after that

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks.values())

    @property
    def largest(self) -> float:
        """The largest difference between recomputed and actual mixed values, relative to the largest value."""
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
        self.causal = {site.key for site in found.sites if site.causal}
        self.seen: Counter[tuple[str, str, int]] = Counter()
        self.loosest = 0.0
        self.broken: set[tuple[str, int]] = set()  # stacks and blocks where the model itself makes NaN or infinity
        self.tokens: Tensor | None = None  # mask of the real tokens of the last stream

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
            self._compare(frame, index)

    def _compare(self, frame: AttentionFrame, index: int) -> None:
        queries, keys = frame.query_mask[index], frame.key_mask[index]
        if not bool(frame.mixed[index][queries].isfinite().all()):
            self.broken.add((frame.stack, frame.layer))
            return
        scores = one_sequence(frame.scores, index)
        pattern = dense_pattern(scores)[0]  # [head, query, key]
        value = frame.value[index].double().repeat_interleave(pattern.shape[0] // frame.value.shape[1], dim=0)
        mixed = (frame.mixed if frame.attended is None else frame.attended)[index].double()  # [query, head, channel]
        difference = ((pattern @ value).transpose(0, 1) - mixed)[queries]
        size = mixed[queries].abs().max()
        if frame.holds is not None:  # signed weights may cancel, so compare with the size of the values
            size = torch.maximum(size, value[:, keys].abs().max())
        self.note("mixed", difference.abs() / size.clamp_min(1e-30))
        mass = pattern.sum(-1)[:, queries]
        if frame.sums_to_one:  # with a learned sink, rows sum to less than one
            self.note("row sums", (mass - 1).clamp_min(0) if scores.sinks is not None else (mass - 1).abs())
        if (frame.stack, frame.site, frame.layer) in self.causal:
            self.note("future", pattern.triu(1)[:, queries].abs())
        elif scores.causal and pattern.shape[1] > 1:
            self.note("future", pattern.new_ones(1))
        self.note("padding", pattern[:, queries][:, :, ~keys].abs())
        if bool(queries.any()):
            seen = visible(scores)[0]  # [head or 1, query, key]
            self.note("unseen keys", (keys & ~seen[:, queries].flatten(0, 1).any(dim=0)).sum().double())

    def broken_from(self, found: Anatomy) -> tuple[str, ...]:
        """Return the first block of every stack in which the model itself makes NaN."""
        first = dict(sorted(self.broken, reverse=True))
        several = len({site.stack for site in found.sites}) > 1
        return tuple(f"{stack} block {first[stack]}" if several else f"block {first[stack]}" for stack in sorted(first))


def verify(
    model: nn.Module, batch: Batch, found: Anatomy | None = None, token_masks: TokenMasks | None = None
) -> Verification:
    """Compare the frames of the tap on one batch with the model's own values."""
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
    # Only repeated attention (for example for every picture) may have another number of calls than the probe.
    any_number = repeating_paths(found)
    expected = Counter(s.key for s in found.sites if s.path not in any_number)
    expected |= Counter({s.key: 1 for s in found.sites})
    missing = [f"{stack} block {block} {site}" for stack, site, block in expected - compared.seen]
    if missing:
        raise RefusalError(
            f"{found.model_class} skipped attention calls that it made on the batch it was probed with "
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


@contextmanager
def residual_identities(model: nn.Module, found: Anatomy, note: Callable[[Tensor], None]) -> Iterator[None]:
    """Call `note` with |result - (before + writes)| / max |result| for every block inside this context."""
    read: dict[Location, Tensor] = {}
    blocks = [block for stack in found.stacks for block in stack.blocks if block.writes.separable]
    wanted = {_entrance(block) for block in blocks}
    for block in blocks:
        for identity in block.writes.identities:
            wanted.update(p for p in (identity.result, identity.before, *identity.writes) if p)

    def keep(location: Location, tensor: Tensor) -> None:
        read[location] = tensor.detach().to(torch.float64, copy=True)

    def compare(block: Block, output: Any) -> None:
        entered, left = read[_entrance(block)], at(output, block.leaves).detach().double()
        for identity in block.writes.identities:
            result = left if identity.result is None else read[identity.result].reshape(entered.shape)
            before = entered if identity.before is None else read[identity.before].reshape(entered.shape)
            written = sum(read[location].reshape(entered.shape) for location in identity.writes)
            finite = result.isfinite()  # the model itself may make NaN
            difference = (result - before - identity.multiplier * written)[finite].abs()
            if difference.numel():
                note(difference / result[finite].abs().max().clamp_min(1e-30))
        read.clear()

    with Restoring() as changes:
        changes.before(model, lambda *_: read.clear(), kwargs=False, prepend=True)
        read_at(changes, model, wanted, keep)
        changes.nth_calls(model, {(block.path, block.nth): block for block in blocks}, after=compare)
        yield


def _entrance(block: Block) -> Location:
    return Location(block.path, block.nth, "input", block.enters)


def _largest_difference(left: list[Tensor], right: list[Tensor]) -> float:
    """Return the largest difference, which is zero only if all tensors are equal bit for bit (NaN equals NaN)."""
    if [(a.shape, a.dtype) for a in left] != [(b.shape, b.dtype) for b in right]:
        return float("inf")
    different = [(a, b) for a, b in zip(left, right, strict=True) if not same_numbers(a, b)]
    return max(
        (float((a.double() - b.double()).abs().nan_to_num(float("inf")).max()) for a, b in different), default=0.0
    )


def _notes(
    model: nn.Module, batch: Batch, found: Anatomy, untouched: list[Tensor], tokens: Tensor | None
) -> tuple[str, ...]:
    notes = []
    if found.fast_path:
        with warnings.catch_warnings(), same_chance(model):
            warnings.simplefilter("ignore")  # torch warns about nested tensors, which its fused path uses
            fused = list(every_tensor(run(model, batch)))
        difference = _largest_difference([_real(a, tokens) for a in fused], [_real(b, tokens) for b in untouched])
        notes.append(
            "torch's fused encoder path is switched off during measurements; with it the output of this batch differs "
            f"by {difference:.1e}"
        )
    if any(not stack.chained for stack in found.stacks):
        notes.append("the stream changes between blocks: the output of the last block is not shown")
    return tuple(notes)


def _real(output: Tensor, tokens: Tensor | None) -> Tensor:
    """Return the real tokens of an output, because the fused path fills padding with zeros."""
    for candidate in () if tokens is None else (tokens, tokens.t()):
        if output.shape[:2] == candidate.shape:
            return output[candidate]
    return output
