"""Find how a block writes into the residual stream, by arithmetic on the inputs and outputs of its modules.

The search goes backwards from the output of the block. A state is a norm of a sum (post-norm), or an earlier state plus
the output of a module (a write), or the input stream plus two simultaneous writes (parallel). The search ends at the
input stream. If it does not get there, the writes of the block are not separable.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.hf.anatomy.recording import Location, StreamRecord

_UNEXPLAINED = 0.5  # largest unexplained share of a change
_LONGEST = 8  # most writes in a block: usually two, three with cross-attention, four in a Macaron block
State = Float[Tensor, "batch token width"]


@dataclass(frozen=True)
class Writes:
    """How a block writes to the stream: where it norms, and where to read the stream between attention and MLP."""

    norm: str  # "pre", "post", "sandwich", "parallel", "none" or "unknown"
    count: int = 0  # writes found; 0 if not separable
    middle: Location | None = None  # the stream after the last attention write
    adds: float | None = None  # in parallel blocks `middle` is the write itself: stream + adds * write
    identities: tuple[Identity, ...] = ()  # one per write (parallel: one for both)
    norms: tuple[str, ...] = ()  # modules that norm a state of the stream, or whose output is one

    @property
    def separable(self) -> bool:
        return self.count > 0


@dataclass(frozen=True)
class Identity:
    """The identity result = before + multiplier * sum of writes, between tensors that can be read in any run."""

    result: Location | None  # None: the stream that leaves the block
    before: Location | None  # None: the stream that enters it
    writes: tuple[Location, ...]
    multiplier: float


@dataclass(frozen=True)
class _Step:
    result: Location | None  # None: the stream that left
    before: StreamRecord | None  # None: the stream that entered
    write: StreamRecord
    multiplier: float
    normed: bool


def find_writes(entered: State, left: State, records: list[StreamRecord], attended: list[int], eps: float) -> Writes:
    """Search backwards from `left` to `entered`. `attended` holds the order numbers of the attention calls."""
    return _Walk(entered, left, records, attended, eps).writes()


class _Walk:
    def __init__(
        self, entered: State, left: State, records: list[StreamRecord], attended: list[int], eps: float
    ) -> None:
        self.entered, self.left, self.attended, self.eps = entered, left, attended, eps
        gave = [r for r in records if r.place.side == "output"]
        took: dict[tuple[str, int], list[StreamRecord]] = {}
        for record in records:
            if record.place.side == "input":
                took.setdefault((record.place.path, record.place.nth), []).append(record)
        self.distinct, self.gave = _distinct(records), _distinct(gave)
        inputs = [(r, took.get((r.place.path, r.place.nth), [])) for r in gave if r.alone]
        self.norms = [(given, taken[0]) for given, taken in inputs if _is_norm(given, taken)]

    def writes(self) -> Writes:
        steps: list[_Step] = []
        state = self.left
        while len(steps) < _LONGEST:
            source, result = state, steps[-1].before.place if steps and steps[-1].before else None
            taken = next((taken for normed, taken in self.norms if torch.equal(normed.tensor, state)), None)
            if taken is not None:
                source, result = taken.tensor, taken.place
            step = self._last_write(source, result, normed=taken is not None)
            if step is None:
                return Writes("unknown") if steps else self._parallel(state)
            steps.append(step)
            if step.before is None:
                return self._sequential(steps[::-1])
            state = step.before.tensor
        return Writes("unknown")

    def _sequential(self, steps: list[_Step]) -> Writes:
        # The write of an attention call is the first write that is complete after the call.
        last = max((_first_after(when, steps) for when in self.attended), default=-1)
        follows = steps[last + 1].before if 0 <= last < len(steps) - 1 else None
        states = [self.entered, *(step.before.tensor for step in steps if step.before is not None)]
        if any(step.normed for step in steps):
            norm = "post"
        elif all(any(torch.equal(normed.tensor, step.write.tensor) for normed, _ in self.norms) for step in steps):
            norm = "sandwich"
        else:
            reads = any(torch.equal(taken.tensor, state) for _, taken in self.norms for state in states)
            norm = "pre" if reads else "none"
        identities = tuple(
            Identity(s.result, s.before.place if s.before else None, (s.write.place,), s.multiplier) for s in steps
        )
        middle = None if follows is None else follows.place
        return Writes(norm, len(steps), middle, None, identities, self._norms_of([*states, self.left]))

    def _parallel(self, state: State) -> Writes:
        """Explain the state as entered + multiplier * (one write + another)."""
        best, lowest = None, _UNEXPLAINED
        for index, first in enumerate(self.gave[:-1]):
            others = self.gave[index + 1 :]
            sums = first.tensor + torch.stack([other.tensor for other in others])
            slopes, rest = _explain(state, self.entered, sums, self.eps)
            least = int(rest.argmin())
            if rest[least] < lowest:
                lowest = float(rest[least])
                best = (first, others[least], float(slopes[least]))
        if best is None:
            return Writes("unknown")
        first, second, multiplier = best
        early, late = sorted((first, second), key=lambda record: record.order)
        attention = early if not self.attended or early.order >= max(self.attended) else late
        identity = Identity(None, None, (first.place, second.place), multiplier)
        norms = self._norms_of([self.entered, self.left])
        return Writes("parallel", 2, attention.place, multiplier, (identity,), norms)

    def _norms_of(self, states: list[State]) -> tuple[str, ...]:
        """Return the paths of norms whose input or output is a state (not a write, a query or a key)."""
        mine = (
            normed.place.path
            for normed, taken in self.norms
            if any(torch.equal(seen.tensor, state) for seen in (taken, normed) for state in states)
        )
        return tuple(dict.fromkeys(mine))

    def _last_write(self, state: State, result: Location | None, *, normed: bool) -> _Step | None:
        """Explain state = before + multiplier * write; `before` is the input stream or any tensor of the block."""
        best, lowest = None, _UNEXPLAINED
        for before in (None, *self.distinct):
            base = self.entered if before is None else before.tensor
            later = [g for g in self.gave if before is None or g.order > before.order]
            if not later or torch.equal(base, state):
                continue
            slopes, rest = _explain(state, base, torch.stack([g.tensor for g in later]), self.eps)
            for index in torch.nonzero(rest < lowest).flatten().tolist():
                if rest[index] < lowest:
                    lowest = float(rest[index])
                    best = _Step(result, before, later[index], float(slopes[index]), normed)
        return best


def _first_after(when: int, steps: list[_Step]) -> int:
    later = [(step.write.order, index) for index, step in enumerate(steps) if step.write.order >= when]
    return min(later)[1] if later else -1


def _explain(
    state: State, base: State, writes: Float[Tensor, "write batch token width"], eps: float
) -> tuple[Float[Tensor, " write"], Float[Tensor, " write"]]:
    """Return the multiple of each write that best explains state - base, and the unexplained share of the change.

    Every entry is measured in units of its possible rounding error, eps * (|state| + |base| + |write|), so that one
    huge activation does not hide the others, and the rule is the same in every precision: the remainder must be a few
    rounding errors at most, and small compared with the change.
    """
    unit = eps * (state.abs() + base.abs() + writes.abs()) + 1e-30
    change, scaled = ((state - base) / unit).flatten(1), (writes / unit).flatten(1)
    slopes = (scaled * change).sum(1) / scaled.square().sum(1).clamp_min(1e-300)
    slopes = torch.where((slopes - 1).abs() < 1e-2, 1.0, slopes)
    left_over = change - slopes[:, None] * scaled
    rest = left_over.norm(dim=1) / change.norm(dim=1).clamp_min(1e-300)
    wrong = (left_over.abs().amax(1) > 4) | (slopes.abs() < 1e-2)
    return slopes, rest.masked_fill(wrong, torch.inf)


def _distinct(records: list[StreamRecord]) -> list[StreamRecord]:
    """Return the first record of every distinct tensor: dropout and containers return their input unchanged."""
    kept: list[StreamRecord] = []
    for record in records:
        if not any(torch.equal(record.tensor, other.tensor) for other in kept):
            kept.append(record)
    return kept


def _is_norm(normed: StreamRecord, taken: list[StreamRecord]) -> bool:
    """Return whether a module has the same output for a vector and for ten times that vector."""
    inside = [child for child in normed.module.children() if not getattr(child, "stays_a_norm", False)]
    if len(taken) != 1 or not taken[0].alone or inside:
        return False
    return not torch.equal(taken[0].tensor, normed.tensor) and _scale_free(normed.module, taken[0].tensor)


def _scale_free(module: nn.Module, taken: State) -> bool:
    dtype = next((p.dtype for p in module.parameters()), torch.float32)
    scaled = (taken / taken.std().clamp_min(1e-30) * 100).to(dtype)
    try:
        small, large = module.forward(scaled), module.forward(scaled * 10)
    except (RuntimeError, TypeError, ValueError):
        return False  # it needs other arguments or another shape, so it is not a norm
    if not isinstance(small, Tensor) or not isinstance(large, Tensor) or small.shape != large.shape:
        return False
    return bool((small - large).double().norm() <= 1e-2 * small.double().norm())
