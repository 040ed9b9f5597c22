"""How a block writes into the residual stream, found by arithmetic on what its modules took and gave.

Backwards from what leaves the block: a state is either a norm of a sum (post-norm), or an earlier state
plus the output of some module (a write), or the entering stream plus two writes made side by side
(parallel). The walk ends at the stream that entered; if it does not, the block's writes are not
separable and nothing is claimed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.hf.tape import Place, StreamRecord

_LONGEST = 8  # writes in one block: two, three with cross-attention, four in a macaron


@dataclass(frozen=True)
class Writes:
    """Norm placement and where to read the stream between attention and MLP."""

    norm: str  # "pre", "post", "sandwich", "parallel", "none" or "unknown"
    count: int = 0  # writes found; 0 where not separable
    middle: Place | None = None  # the stream after the last attention write
    adds: float | None = None  # in parallel blocks `middle` is the write itself: stream + adds * write
    identities: tuple[Identity, ...] = ()  # one per write (parallel: one for both)

    @property
    def separable(self) -> bool:
        return self.count > 0


@dataclass(frozen=True)
class Identity:
    """result = before + multiplier * sum of writes, as places where the three can be read during any run."""

    result: Place | None  # None: the stream that leaves the block
    before: Place | None  # None: the stream that enters it
    writes: tuple[Place, ...]
    multiplier: float


@dataclass(frozen=True)
class _Step:
    result: Place | None  # None: the stream that left
    before: StreamRecord | None  # None: the stream that entered
    write: StreamRecord
    multiplier: float
    normed: bool


State = Float[Tensor, "batch token width"]


def find_writes(
    entered: State, left: State, records: list[StreamRecord], attended: list[int], eps: float
) -> Writes:
    """Walk back from `left` to `entered`. `attended` says when, in record order, attention happened."""
    gave = [r for r in records if r.place.side == "output"]
    norms = [r for r in gave if r.alone and _is_norm(r, records)]
    steps: list[_Step] = []
    state = left
    while len(steps) < _LONGEST:
        source, result, normed = state, steps[-1].before.place if steps and steps[-1].before else None, False
        norm = next((n for n in norms if _close(n.tensor, state, eps)), None)
        if norm is not None:
            taken = _taken(norm, records)
            source, result, normed = taken.tensor, taken.place, True
        step = _last_write(source, entered, records, gave, eps=eps, normed=normed, result=result)
        if step is None:
            both = None if steps else _two_writes(state, entered, gave, eps)
            return Writes("unknown") if both is None else _parallel(both, attended)
        steps.append(step)
        if step.before is None:
            return _sequential(steps[::-1], norms, records, entered=entered, attended=attended, eps=eps)
        state = step.before.tensor
    return Writes("unknown")


def _sequential(
    steps: list[_Step],
    norms: list[StreamRecord],
    records: list[StreamRecord],
    *,
    entered: State,
    attended: list[int],
    eps: float,
) -> Writes:
    # The write of an attention call is the first one that finishes after it.
    last = max((_first_after(when, steps) for when in attended), default=-1)
    middle = None
    if 0 <= last < len(steps) - 1:
        follows = steps[last + 1].before
        middle = None if follows is None else follows.place
    if any(step.normed for step in steps):
        norm = "post"
    elif all(any(_close(n.tensor, step.write.tensor, eps) for n in norms) for step in steps):
        norm = "sandwich"
    else:
        states = [entered, *(step.before.tensor for step in steps if step.before is not None)]
        reads = [_taken(n, records).tensor for n in norms]
        norm = "pre" if any(_close(read, state, eps) for read in reads for state in states) else "none"
    identities = tuple(
        Identity(s.result, None if s.before is None else s.before.place, (s.write.place,), s.multiplier)
        for s in steps
    )
    return Writes(norm, len(steps), middle, None, identities)


def _first_after(when: int, steps: list[_Step]) -> int:
    later = [(step.write.order, index) for index, step in enumerate(steps) if step.write.order >= when]
    return min(later)[1] if later else -1


def _parallel(both: tuple[StreamRecord, StreamRecord, float], attended: list[int]) -> Writes:
    first, second, multiplier = both
    early, late = sorted((first, second), key=lambda record: record.order)
    attention = early if not attended or early.order >= max(attended) else late
    identity = Identity(None, None, (first.place, second.place), multiplier)
    return Writes("parallel", 2, attention.place, multiplier, (identity,))


def _last_write(
    state: State,
    entered: State,
    records: list[StreamRecord],
    gave: list[StreamRecord],
    *,
    eps: float,
    normed: bool,
    result: Place | None,
) -> _Step | None:
    """state = before + multiplier * write, `before` being the entering stream or any tensor of the block."""
    if not gave:
        return None
    writes = torch.stack([r.tensor.flatten() for r in gave])
    sizes = writes.square().sum(1)
    best: _Step | None = None
    for before in (None, *records):
        base = entered if before is None else before.tensor
        change = (state - base).flatten()
        if float(change.norm()) <= 4 * eps * float(state.norm()):
            continue
        slopes = (writes @ change) / sizes.clamp_min(1e-300)
        left_over = (change - slopes[:, None] * writes).norm(dim=1)
        allowed = 8 * eps * (state.norm() + base.norm())
        fits = (left_over <= allowed) & (left_over <= 0.02 * change.norm()) & (slopes.abs() > 1e-2)
        for index in torch.nonzero(fits).flatten().tolist():
            slope = _round(float(slopes[index]))
            if (
                before is not None
                and gave[index].order <= before.order
                and gave[index].place.side == before.place.side
            ):
                continue
            step = _Step(result, before, gave[index], slope, normed)
            if best is None or (abs(slope - 1) < 1e-6) > (abs(best.multiplier - 1) < 1e-6):
                best = step
            if best.multiplier == 1.0:
                return best
    return best


def _two_writes(
    state: State, entered: State, gave: list[StreamRecord], eps: float
) -> tuple[StreamRecord, StreamRecord, float] | None:
    """state = entered + multiplier * (one write + another)."""
    change = (state - entered).flatten()
    allowed = 8 * eps * (state.norm() + entered.norm())
    for index, one in enumerate(gave):
        for other in gave[index + 1 :]:
            total = (one.tensor + other.tensor).flatten()
            slope = _round(float((total @ change) / total.square().sum().clamp_min(1e-300)))
            left_over = change - slope * total
            if abs(slope) > 1e-2 and left_over.norm() <= allowed and left_over.norm() <= 0.02 * change.norm():
                return one, other, slope
    return None


def _round(slope: float) -> float:
    return 1.0 if abs(slope - 1) < 1e-3 else slope


def _close(left: State, right: State, eps: float) -> bool:
    return bool((left - right).norm() <= 4 * eps * right.norm())


def _taken(gave: StreamRecord, records: list[StreamRecord]) -> StreamRecord:
    return next(
        r
        for r in records
        if r.place.side == "input" and (r.place.path, r.place.nth) == (gave.place.path, gave.place.nth)
    )


def _is_norm(gave: StreamRecord, records: list[StreamRecord]) -> bool:
    """A norm gives the same for a vector and for ten times that vector, and is not the identity."""
    mine = [
        r
        for r in records
        if r.place.side == "input" and (r.place.path, r.place.nth) == (gave.place.path, gave.place.nth)
    ]
    if len(mine) != 1 or not mine[0].alone or not any(True for _ in gave.module.parameters(recurse=False)):
        return False
    taken = mine[0].tensor
    return not torch.equal(taken, gave.tensor) and _scale_free(gave.module, taken)


def _scale_free(module: nn.Module, taken: State) -> bool:
    parameter = next(module.parameters())
    one = (taken / taken.std().clamp_min(1e-30) * 100).to(parameter.dtype)
    try:
        small, large = module.forward(one), module.forward(one * 10)
    except (RuntimeError, TypeError, ValueError):
        return False  # it takes something else as well, or another shape: no norm
    if not isinstance(small, Tensor) or not isinstance(large, Tensor) or small.shape != large.shape:
        return False
    return bool((small - large).double().norm() <= 1e-2 * small.double().norm())
